"""A server that is killed leaves no child."""

import subprocess
import sys
from pathlib import Path

from .support import until
from .test_children import runs

SERVER = """
import asyncio, sys
from pathlib import Path
from tests.serving.handlers.support import pool_of, spec_for, submit

async def main():
    async with pool_of(spec_for(Path(sys.argv[1]))) as pool:
        await submit(pool, "signals")
        await submit(pool, "sleep", b"600")
        print(pool.workers[0].child.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_child_in_the_middle_of_a_call_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", SERVER, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        pid = next(int(line) for line in server.stdout if line.strip().isdigit())
        assert runs(pid)
        server.kill()
    await until(lambda: not runs(pid))
