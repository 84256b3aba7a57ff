"""After kill -9 at any moment all reported writes are there, and none is partial."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.platform.state.store import open_store
from tests.platform.state.kinds import WORKER

ROOT = Path(__file__).parent.parent.parent.parent


def write_and_be_killed(where: str, after_lines: int) -> list[tuple[str, int]]:
    """Return the writes that a writer reported before it was killed."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.platform.state.store_writer", where],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    with writer.stdout as lines:
        said = [next(lines) for _ in range(after_lines)]
        writer.send_signal(signal.SIGKILL)
        said += list(lines)
    assert writer.wait() == -signal.SIGKILL
    return [(line.split()[0], int(line.split()[1])) for line in said if line.endswith("\n")]


@pytest.mark.parametrize("after_lines", [1, 40])
def test_reported_writes_are_there_after_kill_9(lasting_place, after_lines) -> None:
    open_store(lasting_place).close()
    said = write_and_be_killed(lasting_place, after_lines)
    with contextlib.closing(open_store(lasting_place)) as store:
        found = {record.spec["number"]: record for record in store.list(WORKER)}
        removed = {number for what, number in said if what == "removed"}
        made = {number for what, number in said if what == "made"}
        written = {number for what, number in said if what == "written"}
        last = max(made)
        assert not removed & set(found)
        assert made - removed - {last} <= set(found)
        assert set(found) <= made | {last + 1}, "at most one write was not told"
        assert all(found[number].status == {"number": number} for number in written & set(found))
        assert store.revision() >= max(record.revision for record in found.values()) if found else True
        store.create(WORKER, "after", spec={"number": -1})
