"""Children whose contract is asynchronous: many calls at once in one process."""

from pathlib import Path

from .support import answer, ask, pool_of, spec_for, submit, until
from .test_children import LOST


async def test_calls_run_at_once_on_the_loop_of_the_contract(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, entry="asynchronous")) as pool:
        meeting = [await submit(pool, "meet") for _ in range(3)]
        assert [await answer(response) for response in meeting] == [(200, b"met")] * 3
        endless = await submit(pool, "endless")
        await endless.head()
        assert (await ask(pool, "stream", b"20"))[1].count(b"\n") == 20, "the other one waits for its client"
        endless.close()
        await until(lambda: not pool.num_running)
        assert len(pool.workers) == 1


async def test_a_contract_that_fails_ends_the_process_with_all_its_calls(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, entry="asynchronous")) as pool:
        responses = [await submit(pool, action) for action in ("until_cancelled", "fail")]
        assert [await answer(response) for response in responses] == [(500, LOST)] * 2
        assert await ask(pool, "echo", b"next") == (200, b"next")
