"""The end of all workers, when a platform stops and does not leave them to the next one."""

import asyncio
from contextlib import suppress

from headrace.cluster.launcher import Launcher
from headrace.control.model.kinds import WORKER
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict
from headrace.state.store import Store

_POLL_S = 0.05
_KILL_RESERVE_S = 5.0
"""After SIGKILL was due: time for the kernel to take the processes away."""


async def end_workers(store: Store | None, launcher: Launcher, *, grace_s: float) -> int:
    """
    Stop all workers and wait for them; returns how many there were.

    Their records are marked as leaving, so that the next platform puts them away and starts others, and takes their
    end for no failure. Call it when nobody reconciles any more.

    Args:
        store: None: the records are another platform's by now.
        launcher: of the workers.
        grace_s: between SIGTERM and SIGKILL.
    """
    if store is not None:
        await asyncio.to_thread(_mark_leaving, store)
    try:
        workers = await launcher.known()
        for name, handle in workers.items():
            await launcher.stop(name, handle, grace_s=grace_s)
    except TimeoutError as error:  # a cluster that is away keeps no platform from stopping
        get_logger().error("workers.not_reached", message=str(error))
        return 0
    try:
        async with asyncio.timeout(grace_s + _KILL_RESERVE_S):
            while await launcher.known():  # noqa: ASYNC110 -- they may not be our children: nobody tells
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        get_logger().error("workers.left", workers=sorted(workers))
    return len(workers)


def _mark_leaving(store: Store) -> None:
    for record in store.list(WORKER):
        with suppress(Conflict):
            store.update(record, is_deleting=True)
