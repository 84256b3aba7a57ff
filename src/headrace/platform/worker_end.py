"""Termination of all workers when a platform stops and does not keep them for the next one."""

import asyncio
from contextlib import suppress

from headrace.cluster.launcher import Launcher
from headrace.control.model.worker import WORKER
from headrace.core.errors import Unavailable
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict
from headrace.state.store import Store

_POLL_S = 0.05
_KILL_RESERVE_S = 5.0
"""Seconds after SIGKILL for the kernel to remove the processes."""


async def end_workers(store: Store | None, launcher: Launcher, *, grace_s: float) -> int:
    """
    Stop all workers and wait for them; return their number.

    Their records are marked as being deleted, so that the next platform replaces them and does not count their end as a
    failure. On a full disk the workers are stopped without the marks. Call it after the reconciler has stopped.

    Args:
        store: the records; None if another platform has taken them over.
        launcher: the launcher of the workers.
        grace_s: seconds between SIGTERM and SIGKILL.
    """
    if store is not None:
        await asyncio.to_thread(_mark_deleting, store)
    try:
        workers = await launcher.known()
        for name, handle in workers.items():
            await launcher.stop(name, handle, grace_s=grace_s)
    except TimeoutError as error:  # an unreachable cluster must not keep the platform from stopping
        get_logger().error("workers.not_reached", message=str(error))
        return 0
    try:
        async with asyncio.timeout(grace_s + _KILL_RESERVE_S):
            while await launcher.known():  # noqa: ASYNC110 -- they need not be child processes, whose end is reported
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        get_logger().error("workers.left", workers=sorted(workers))
    return len(workers)


def _mark_deleting(store: Store) -> None:
    try:
        for record in store.list(WORKER):
            with suppress(Conflict):
                store.update(record, is_deleting=True)
    except Unavailable as error:
        get_logger().warning("workers.not_marked", message=error.message)
