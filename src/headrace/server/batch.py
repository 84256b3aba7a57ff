"""Runs the many inputs of one HTTP request through a backend, a limited number at a time."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from headrace.core.errors import Busy

Relay = Callable[[], Awaitable[None]]


async def run_window(relays: Sequence[Relay], *, window: int) -> None:
    """
    Run all relays in order, at most `window` at a time; the first error ends the others and is raised.

    A relay that is refused as `Busy` runs again when another one of this request has ended, so that a large batch does
    not fail halfway because smaller requests took the places in the queue.
    """
    waiting = deque(range(len(relays)))
    running: dict[asyncio.Task[None], int] = {}
    try:
        while waiting or running:
            while waiting and len(running) < window:
                number = waiting.popleft()
                running[asyncio.ensure_future(_run(relays[number]))] = number
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number = running.pop(task)
                error = task.exception()
                if isinstance(error, Busy) and (running or len(done) > 1):
                    waiting.appendleft(number)
                    window = max(1, len(running))
                elif error is not None:
                    raise error
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _run(relay: Relay) -> None:
    await relay()
