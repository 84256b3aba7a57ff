"""Conversion of calls and loads to and from frames."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace_handler.contract import Call, Item, Load, Part
from headrace_handler.frames import BadFrame, Frame, read_memory_file
from headrace_handler.reply import ItemReply, Link


class RunningCall:
    """A call that user code runs, and the replies to its items."""

    def __init__(self, call_id: int, call: Call, replies: Mapping[int, ItemReply]) -> None:
        self.call_id = call_id
        self.call = call
        self._replies = replies

    def credit(self, item_id: int, chunks: int, num_bytes: int) -> None:
        """Extend the send window of an item, if this call has it."""
        if item_id in self._replies:
            self._replies[item_id].credit(chunks, num_bytes)

    def cancel(self, item_id: int) -> None:
        """Cancel an item, if this call has it."""
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
    """Return what to load."""
    fields = frame.header["load"]
    return Load(**fields | {"model_dir": Path(fields["model_dir"])})


def running_call(frame: Frame, link: Link) -> RunningCall:
    """Return the call of a frame; its items answer through `link`."""
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
