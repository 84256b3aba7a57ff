"""Receive a form with a file: its content goes to disk as it arrives, and is never in memory as a whole."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from headrace.core.client_text import escaped, shortened
from headrace.core.errors import InvalidRequest, PayloadTooLarge, Unavailable
from headrace.core.sizes import format_size
from headrace.serving.http.asgi import Receive
from headrace.serving.http.body import body_parts
from headrace.serving.wire.framing import missing
from headrace.serving.wire.multipart import FormReader, PartHead
from headrace.serving.wire.openai.files import FORM_FIELDS, MAX_FIELD_BYTES, MAX_FILE_BYTES

_WRITE_BYTES: Final = 1 << 20
"""Bytes that are collected before they are written, in another thread."""
_MAX_NAME_CHARACTERS: Final = 255
STALL_S: Final = 60.0
"""Longest silence of a client in the middle of its upload."""


@dataclass(slots=True, kw_only=True)
class Upload:
    """A form that arrives; its file is written to `path`."""

    path: Path
    max_bytes: int = MAX_FILE_BYTES
    fields: dict[str, str] = field(default_factory=dict)
    filename: str = ""
    num_bytes: int = 0
    _part: str = ""
    _texts: dict[str, bytes] = field(default_factory=dict)
    _waiting: bytearray = field(default_factory=bytearray)

    async def receive(self, receive: Receive, content_type: str) -> None:
        """
        Read the form to its end.

        Raises `InvalidRequest` for a malformed form, or one without a file; `PayloadTooLarge`, `ClientGone`, and
        `Unavailable` if the file cannot be written.
        """
        reader = FormReader(content_type)
        try:
            with await asyncio.to_thread(open, self.path, "xb", buffering=0) as file:
                async for data in _timely(body_parts(receive)):
                    for piece in reader.feed(data):
                        self._take(piece)
                    if len(self._waiting) >= _WRITE_BYTES:
                        await self._write(file.fileno())
                await self._write(file.fileno())
                await asyncio.to_thread(os.fsync, file.fileno())
        except OSError as error:
            raise Unavailable(f"The file cannot be stored: {error.strerror}. Try again later.") from error
        if not reader.is_complete:
            raise InvalidRequest("The form ends within a part; expected its closing boundary.")
        self.fields = {name: text.decode("utf-8", "replace") for name, text in self._texts.items() if name != "file"}
        if "file" not in self._texts:
            raise missing("file")

    def _take(self, piece: PartHead | bytes) -> None:
        if isinstance(piece, PartHead):
            self._begin(piece)
        elif self._part == "file":
            self.num_bytes += len(piece)
            if self.num_bytes > self.max_bytes:
                raise PayloadTooLarge(
                    f"The file has more than {format_size(self.max_bytes)}; expected at most so much. Split it."
                )
            self._waiting += piece
        else:
            self._texts[self._part] += piece
            if len(self._texts[self._part]) > MAX_FIELD_BYTES:
                raise InvalidRequest(f"The field {self._part} has more than {MAX_FIELD_BYTES} bytes; expected fewer.")

    def _begin(self, head: PartHead) -> None:
        if head.name not in FORM_FIELDS:
            expected = ", ".join(sorted(FORM_FIELDS))
            shown = shortened(head.name)
            raise InvalidRequest(f"The form has a field {shown!r}; expected only {expected}.", param=shown)
        if head.name in self._texts:
            raise InvalidRequest(f"The form has two fields {head.name}; expected one.", param=head.name)
        if head.name == "file":
            name = PurePosixPath(head.filename.replace("\\", "/")).name
            self.filename = escaped(name)[:_MAX_NAME_CHARACTERS] or "upload.jsonl"
        self._part, self._texts[head.name] = head.name, b""

    async def _write(self, descriptor: int) -> None:
        waiting, self._waiting = self._waiting, bytearray()

        def write() -> None:
            left = memoryview(waiting)
            while left:
                left = left[os.write(descriptor, left) :]

        await asyncio.to_thread(write)


async def _timely(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts of a body; raise `InvalidRequest` after a long silence."""
    while True:
        try:
            async with asyncio.timeout(STALL_S):
                part = await anext(parts)
        except TimeoutError:
            raise InvalidRequest(f"Nothing of the form arrived for {STALL_S:g} seconds. Send it again.") from None
        except StopAsyncIteration:
            return
        yield part
