"""Request bodies, read within limits of size, time, and memory for all requests together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress

from headrace.serving.http.asgi import Message, Receive

FREE_BYTES = 64 * 1024
"""The first bytes of each body are not counted, so that slow large bodies never keep out small ones."""


class BudgetSpent(Exception):
    """The bodies of other requests fill the budget."""


class BodyBudget:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        """Counted bytes of all bodies."""
        self.on_release: Callable[[], None] = lambda: None
        """Called after a body has ended."""

    @contextmanager
    def share(self) -> Iterator["BodyShare"]:
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.held_bytes -= share.counted_bytes
            self.on_release()

    @contextmanager
    def holding(self, num_bytes: int) -> Iterator[None]:
        """Count a response until the block ends. It is never refused, as it is in memory already."""
        with self.share() as share:
            with suppress(BudgetSpent):
                share.add(num_bytes)
            yield


class BodyShare:
    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.num_bytes = 0
        """Bytes of the body that have arrived."""

    @property
    def counted_bytes(self) -> int:
        return max(0, self.num_bytes - FREE_BYTES)

    def add(self, num_bytes: int) -> None:
        """
        Count bytes that have arrived; raise `BudgetSpent` if they exceed the budget.

        They still count until the block ends.
        """
        before = self.counted_bytes
        self.num_bytes += num_bytes
        self._budget.held_bytes += self.counted_bytes - before
        if self.counted_bytes and self._budget.held_bytes > self._budget.max_bytes:
            raise BudgetSpent


_IS_COUNTED = "headrace.is_counted"
"""Key of a replayed message whose bytes already count in a share of the budget."""
_MANY_BYTES = 1024 * 1024
"""Larger bodies are joined in a thread: copying 25 MiB takes 4 ms, and 60 ms on a machine with busy CPUs."""


class ClientGone(Exception):
    """The client disconnected before its request was complete, or before the end of its response."""


class BodyTooLarge(Exception):
    """A request body has, or declares, more bytes than the server takes."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes or more")
        self.num_bytes = num_bytes
        """The declared length, or the bytes that arrived until the limit was passed."""


class BodyTooSlow(Exception):
    """A request body did not arrive within its time limit."""


async def read_body(
    receive: Receive,
    *,
    max_bytes: int,
    content_length: int = 0,
    timeout_s: float | None = None,
    share: BodyShare | None = None,
) -> bytes:
    """
    Read a whole request body, never holding more than `max_bytes` of it.

    `content_length` is checked before anything is read, `timeout_s` limits the time until the whole body has arrived,
    and `share` counts the body in the server's budget.

    Raises:
        BodyTooLarge: it has more than `max_bytes`; the rest is not read.
        BodyTooSlow, BudgetSpent, ClientGone: it did not arrive whole.
    """
    if content_length > max_bytes:
        raise BodyTooLarge(content_length)
    parts: list[bytes] = []
    num_bytes, has_more = 0, True
    try:
        async with asyncio.timeout(timeout_s):
            while has_more:
                message = await _received(receive)
                parts.append(message.get("body", b""))
                num_bytes += len(parts[-1])
                if share is not None and not message.get(_IS_COUNTED):
                    share.add(len(parts[-1]))
                if num_bytes > max_bytes:
                    raise BodyTooLarge(num_bytes)
                has_more = message.get("more_body", False)
    except TimeoutError:
        raise BodyTooSlow from None
    if num_bytes > _MANY_BYTES:
        return await asyncio.to_thread(b"".join, parts)  # without the GIL
    return b"".join(parts)


async def body_parts(receive: Receive) -> AsyncIterator[bytes]:
    """Yield a request body as it arrives, without empty parts; raise `ClientGone` if it ends early."""
    while True:
        message = await _received(receive)
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body", False):
            return


async def _received(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that replays a body, which an outer application has read and counts until the response."""
    is_given = False

    async def receive_again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False, _IS_COUNTED: True}

    return receive_again
