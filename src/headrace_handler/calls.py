"""The calls of a child: from and to frames, and responses as user code produces them, with backpressure of clients."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from headrace_handler.contract import Call, Cancelled, Headers, Item, Load, Part
from headrace_handler.frames import (
    MAX_MESSAGE_CHARACTERS,
    WINDOW_BYTES,
    WINDOW_CHUNKS,
    BadFrame,
    Buffer,
    Frame,
    Kind,
    read_memory_file,
)


class Link(Protocol):
    """The connection to the model server; see `Connection`."""

    def send(self, frames: Sequence[tuple[Kind, dict[str, Any], Buffer]]) -> None: ...
    def wait_for(self, condition: Callable[[], bool]) -> None: ...
    def poll(self) -> None: ...


class ItemReply:
    """The `Reply` of one item."""

    def __init__(self, item_id: int, link: Link) -> None:
        self._id = item_id
        self._link = link
        self._counting = threading.Lock()
        self._head: dict[str, Any] | None = None
        """The head, until it is sent with the first part."""
        self._untaken_chunks = 0
        self._untaken_bytes = 0
        self.has_head = False
        self.has_ended = False
        self._is_cancelled = False

    def head(self, status: int, headers: Headers = (), *, phrase: str = "") -> None:
        if self.has_head:
            raise RuntimeError("The response has begun; its status cannot change.")
        self._head = {
            "id": self._id,
            "status": int(status),
            "phrase": phrase,
            "headers": [[str(name), str(value)] for name, value in headers],
        }
        self.has_head = True

    def data(self, chunk: Buffer) -> None:
        if not self.has_head or self.has_ended:
            raise RuntimeError("A part can be sent only between the head and the end of a response.")
        # Backpressure: wait until the client has read enough of what was sent, or has gone.
        if not self.is_cancelled:
            self._link.wait_for(lambda: self._is_cancelled or self._has_window())
        if self._is_cancelled:
            raise Cancelled
        chunk = memoryview(chunk).cast("B")
        self._count(1, len(chunk))
        frames = [] if self._head is None else [(Kind.HEAD, self._head, b"")]
        self._head = None
        self._link.send([*frames, (Kind.DATA, {"id": self._id}, chunk)])

    def end(self, last: Buffer = b"") -> None:
        if self.has_ended:
            return
        if not self.has_head:
            raise RuntimeError("A response cannot end before its head.")
        self.has_ended = True
        last = memoryview(last).cast("B")
        if self._head is not None:
            self._link.send([(Kind.RESPONSE, self._head, last)])
        else:
            self._link.send([(Kind.END, {"id": self._id}, last)])

    def abort(self, message: str) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._link.send([(Kind.ABORT, {"id": self._id, "message": message[:MAX_MESSAGE_CHARACTERS]}, b"")])

    @property
    def is_cancelled(self) -> bool:
        if not self._is_cancelled:
            self._link.poll()
        return self._is_cancelled

    def cancel(self) -> None:
        self._is_cancelled = True

    def credit(self, chunks: int, num_bytes: int) -> None:
        self._count(-chunks, -num_bytes)

    def _count(self, chunks: int, num_bytes: int) -> None:
        with self._counting:
            self._untaken_chunks += chunks
            self._untaken_bytes += num_bytes

    def _has_window(self) -> bool:
        return self._untaken_chunks < WINDOW_CHUNKS and self._untaken_bytes < WINDOW_BYTES


class RunningCall:
    """A call that user code runs, and the replies to its items."""

    def __init__(self, call_id: int, call: Call, replies: Mapping[int, ItemReply]) -> None:
        self.call_id = call_id
        self.call = call
        self._replies = replies

    def credit(self, item_id: int, chunks: int, num_bytes: int) -> None:
        if item_id in self._replies:
            self._replies[item_id].credit(chunks, num_bytes)

    def cancel(self, item_id: int) -> None:
        if item_id in self._replies:
            self._replies[item_id].cancel()

    def end_rest(self) -> None:
        """Abort the replies that the contract has left open."""
        for reply in self._replies.values():
            reply.abort("The code has returned without a response to this request.")


def load_header(load: Load) -> dict[str, Any]:
    """Return the header of the frame that makes a child load user code."""
    return {"load": asdict(load) | {"model_dir": str(load.model_dir), "options": dict(load.options)}}


def load_of(frame: Frame) -> Load:
    fields = frame.header["load"]
    return Load(**fields | {"model_dir": Path(fields["model_dir"])})


def running_call(frame: Frame, link: Link) -> RunningCall:
    header = frame.header
    replies = {item["id"]: ItemReply(item["id"], link) for item in header["items"]}
    contents = _Contents(frame)
    try:
        items = [_item(item, contents, replies[item["id"]]) for item in header["items"]]
    finally:
        contents.close()
    return RunningCall(header["call"], Call(mode=header["mode"], items=items), replies)


def _item(fields: dict[str, Any], contents: "_Contents", reply: ItemReply) -> Item:
    return Item(
        request_id=fields["request_id"],
        method=fields["method"],
        path=fields["path"],
        headers=_pairs(fields["headers"]),
        query=_pairs(fields["query"]),
        parts=[
            Part(
                name=part["name"],
                content_type=part["content_type"],
                content=contents.take(part["length"], is_file=part["memfd"]),
            )
            for part in fields["parts"]
        ],
        reply=reply,
    )


def _pairs(pairs: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in pairs]


class _Contents:
    """The contents of a frame's parts, in their order: from its payload or its memory files."""

    def __init__(self, frame: Frame) -> None:
        self._payload = frame.payload
        self._descriptors = list(frame.descriptors)

    def take(self, num_bytes: int, *, is_file: bool) -> bytearray:
        if is_file:
            if not self._descriptors:
                raise BadFrame("fewer memory files than parts")
            return read_memory_file(self._descriptors.pop(0), num_bytes)
        content, self._payload = self._payload[:num_bytes], self._payload[num_bytes:]
        return bytearray(content)

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())
