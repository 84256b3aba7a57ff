"""Work of the loops in threads, and the loop that the tasks which publish metrics share."""

import asyncio
import threading
import time

import pytest

from headrace.platform.control.loops.store_access import run_periodically, run_to_end
from headrace.platform.state.store import open_store
from tests.waiting import WAIT_S


async def _passes_until_one_succeeds() -> int:
    store, succeeded, num_passes = open_store("sqlite://"), asyncio.Event(), 0

    async def pass_once() -> int:
        nonlocal num_passes
        num_passes += 1
        if num_passes == 1:
            raise OSError("disk full")
        succeeded.set()
        return 0

    loop = asyncio.create_task(
        run_periodically(pass_once, store=store, period_s=0.01, clock=time.time, failure="test.failed")
    )
    async with asyncio.timeout(WAIT_S):
        await succeeded.wait()
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    store.close()
    return num_passes


def test_a_failed_pass_is_followed_by_the_next_one() -> None:
    assert asyncio.run(_passes_until_one_succeeds()) == 2


async def test_a_cancelled_caller_waits_until_its_function_has_ended() -> None:
    began, released = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> bool:
        loop.call_soon_threadsafe(began.set)
        return released.wait(WAIT_S)

    running = asyncio.create_task(run_to_end(work))
    await began.wait()
    running.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not running.done()
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await run_to_end(work)
