"""The health check of a running worker, `GET /ping`."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.serving.http.client import ClientRequest, send_once
from headrace.serving.http.client_connection import NoResponse

PING_TIMEOUT_S: Final = 2.0
"""Source: SageMaker developer guide, "How Your Container Should Respond to Health Check (Ping) Requests"."""


async def pinged_phase(ready: Path, url: str, timeout_s: float) -> WorkerPhase:
    """Return the phase of a running worker by `/ping`; the file `ready` remembers that it has been ready."""

    def was_ready() -> bool:
        was_there = ready.exists()
        if is_healthy and not was_there:
            with suppress(OSError):  # on a full disk the next observation tries again
                ready.touch()
        return was_there

    is_healthy = await ping(url, timeout_s)
    was_healthy = await asyncio.to_thread(was_ready)
    if is_healthy:
        return WorkerPhase.READY
    return WorkerPhase.UNHEALTHY if was_healthy else WorkerPhase.STARTING


async def ping(url: str, timeout_s: float) -> bool:
    """Return whether `GET /ping` returns 200 in time."""
    try:
        async with asyncio.timeout(timeout_s), send_once(url, ClientRequest(method="GET", path="/ping")) as response:
            return response.status == 200
    except (NoResponse, TimeoutError):
        return False
