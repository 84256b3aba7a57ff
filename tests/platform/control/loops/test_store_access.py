"""The loop that the tasks which publish metrics share."""

import asyncio
import time

from headrace.platform.control.loops.store_access import run_periodically
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
