"""
The bodies of running asynchronous invocations, in bounded memory.

An input is a request body, and counts in the budget of all request bodies. No client waits for an asynchronous
invocation, so it waits for room in place of failing: before its input is read, when it holds nothing that others wait
for. A long response goes to disk, because a worker drops a connection that is not read for long.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from headrace.http.body import FREE_BYTES, BodyBudget, BodyShare, BudgetSpent
from headrace.http.client_connection import ClientResponse, ResponseTooLarge

IN_MEMORY_BYTES = 256 * 1024
"""Bytes of a response that are held in memory."""


class InputRoom:
    """The part of the budget that the inputs of asynchronous invocations may fill."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._turn = asyncio.Lock()
        self._released = asyncio.Event()
        self._num_held = 0
        self.num_waiting = 0
        """Inputs that wait for room."""
        budget.on_release = self._check

    @asynccontextmanager
    async def hold(self, num_bytes: int) -> AsyncIterator[None]:
        """Count an input until the block ends; first wait, first come, first served, until there is room for it."""
        if num_bytes <= FREE_BYTES:
            yield
            return
        with self._budget.share() as share:
            await self._take(share, num_bytes)
            try:
                yield
            finally:
                self._num_held -= 1

    async def _take(self, share: BodyShare, num_bytes: int) -> None:
        self.num_waiting += 1
        try:
            async with self._turn:
                while not self._has_room(num_bytes - FREE_BYTES):
                    await self._released.wait()
                self._num_held += 1
                with suppress(BudgetSpent):  # the only input may exceed the budget
                    share.add(num_bytes)
        finally:
            self.num_waiting -= 1

    def _has_room(self, num_bytes: int) -> bool:
        """
        Return whether an input fits into half of the budget, or is the only one.

        The other half is left to requests whose clients wait: those are refused when there is no room.
        """
        return self._num_held == 0 or self._budget.held_bytes + num_bytes <= self._budget.max_bytes // 2

    def _check(self) -> None:
        self._released.set()
        self._released.clear()


class ReceivedBody:
    """The body of a response: in memory if it is short, else in a file without a name."""

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        """Create an empty body; the file system of `folder` holds long ones."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._num_bytes_in_memory = 0
        self._file: BinaryIO | None = None
        self.num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            with suppress(OSError):  # of a full disk, which the write has reported
                self._file.close()

    async def read(self, response: ClientResponse) -> None:
        """
        Read a response.

        Raises `ResponseBroken`, `ResponseTooLarge`, and `OSError` if it cannot be stored on disk.
        """
        await response.relay(self._put, self._drain)
        if self._file is not None:
            await self._write(self._file)

    def content(self) -> bytes | BinaryIO:
        return b"".join(self._parts) if self._file is None else self._file

    def _put(self, part: bytes) -> bool:
        self._parts.append(part)
        self.num_bytes += len(part)
        self._num_bytes_in_memory += len(part)
        return self._num_bytes_in_memory <= IN_MEMORY_BYTES and self.num_bytes <= self._max_bytes

    async def _drain(self) -> None:
        if self.num_bytes > self._max_bytes:
            raise ResponseTooLarge(f"The response has more than {self._max_bytes} bytes.")
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 -- `__exit__` closes it
        await self._write(self._file)

    async def _write(self, file: BinaryIO) -> None:
        parts, self._parts, self._num_bytes_in_memory = self._parts, [], 0
        await asyncio.to_thread(_append, file, parts)


def _append(file: BinaryIO, parts: list[bytes]) -> None:
    file.writelines(parts)
    file.flush()
