"""
Questions between the processes of a platform: what one has in memory only, such as the traffic that it has served.

Each process listens on a Unix socket in the folder that they share, which only their user can reach. A question is a
line of JSON, the answer is JSON until the end of the connection. A process that does not answer in time is left out.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.core.telemetry import get_logger
from headrace.platform.folders import short_path
from headrace.state.coordination import Standing

TIMEOUT_S: Final = 2.0
_LARGE_BYTES: Final = 1 << 20
"""Longer answers are decoded on another thread."""

Answer = Callable[[Any], object]
"""Answers a question with a JSON value; called with its argument, on the event loop."""


@dataclass(slots=True, kw_only=True)
class Siblings:
    """The other processes of this platform."""

    folder: Path
    """The folder of the sockets; created by `start`."""
    own_id: str
    answers: dict[str, Answer] = field(default_factory=dict)
    """By the name of the question."""
    _ids: Sequence[str] = ()
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        """Start answering questions."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        with short_path(self.folder) as folder:
            self._server = await asyncio.start_unix_server(self._serve, f"{folder}/{self.own_id}")

    async def close(self) -> None:
        """Stop answering questions."""
        if self._server is not None:
            self._server.close()
            (self.folder / self.own_id).unlink(missing_ok=True)

    def set_standing(self, standing: Standing) -> None:
        """Ask these members from now on."""
        self._ids = [member.id for member in standing.members if member.id != self.own_id]

    async def ask(self, question: str, argument: object = None) -> list[Any]:
        """Return the answers of the other processes to a question."""
        asked = msgspec.json.encode([question, argument]) + b"\n"
        answers = await asyncio.gather(*(self._ask(name, asked) for name in self._ids))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, name: str, asked: bytes) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                with short_path(self.folder) as folder:
                    reader, writer = await asyncio.open_unix_connection(f"{folder}/{name}")
                try:
                    writer.write(asked)
                    text = await reader.read()
                finally:
                    writer.close()
            return (
                msgspec.json.decode(text)
                if len(text) < _LARGE_BYTES
                else await asyncio.to_thread(msgspec.json.decode, text)
            )
        except (OSError, TimeoutError, msgspec.DecodeError) as error:
            get_logger().debug("sibling.silent", member=name, reason=str(error))
            return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError, msgspec.DecodeError):
            async with asyncio.timeout(TIMEOUT_S):
                question, argument = msgspec.json.decode(await reader.readuntil(b"\n"))
                if question in self.answers:
                    writer.write(msgspec.json.encode(self.answers[question](argument)))
                    await writer.drain()
        writer.close()
