"""
The items of a response's output while they are generated, and their events.

Source: OpenAI API reference, "Streaming events".
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from headrace.wire.openai.responses_tools import ToolOrigin, custom_input
from headrace.wire.openai.tool_stream import CallStart

Event = tuple[str, dict[str, object]]
"""The type of an event and its other fields, without the number."""


TextKind = Literal["message", "reasoning"]


class TextItem:
    """A message or the reasoning before one, with one content part."""

    def __init__(self, kind: TextKind, request_id: str, index: int) -> None:
        """Create item number `index` of the output."""
        self.kind = kind
        self._is_message = kind == "message"
        self._id = f"{'msg' if self._is_message else 'rs'}_{request_id}_{index}"
        self._index = index
        self._texts: list[str] = []
        self._logprobs: list[dict[str, object]] = []

    def begin(self) -> Iterator[Event]:
        """Yield the events before the first delta."""
        yield _item_event("added", self._index, self._object("in_progress", []))
        yield self._part_event("added")

    def add(self, text: str, logprobs: Sequence[dict[str, object]]) -> Iterator[Event]:
        """Append text."""
        self._texts.append(text)
        self._logprobs += logprobs
        yield self._text_event("delta", {"delta": text}, logprobs)

    def end(self, status: str) -> Iterator[Event]:
        """Yield the events after the last delta."""
        yield self._text_event("done", {"text": "".join(self._texts)}, self._logprobs)
        yield self._part_event("done")
        yield _item_event("done", self._index, self.item(status))

    def item(self, status: str) -> dict[str, object]:
        """Return the item with its text so far."""
        return self._object(status, [self._part()])

    def _object(self, status: str, content: Sequence[object]) -> dict[str, object]:
        shared = {"id": self._id, "type": self.kind, "status": status, "content": content}
        return {**shared, "role": "assistant"} if self._is_message else {**shared, "summary": []}

    def _part(self) -> dict[str, object]:
        text = "".join(self._texts)
        if self._is_message:
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}
        return {"type": "reasoning_text", "text": text}

    def _part_event(self, suffix: str) -> Event:
        return f"response.content_part.{suffix}", {**self._place(), "part": self._part()}

    def _text_event(self, suffix: str, text: dict[str, object], logprobs: Sequence[object]) -> Event:
        if self._is_message:
            return f"response.output_text.{suffix}", {**self._place(), **text, "logprobs": logprobs}
        return f"response.reasoning_text.{suffix}", {**self._place(), **text}

    def _place(self) -> dict[str, object]:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}


class CallItem:
    """A call of a tool, of which the model has called the function that stands for it."""

    def __init__(self, start: CallStart, origin: ToolOrigin, request_id: str, index: int) -> None:
        """Create item number `index` of the output."""
        self._id = f"{'ctc' if origin.is_custom else 'fc'}_{request_id}_{index}"
        self._call_id = f"call_{request_id}_{start.index}"
        self._origin = origin
        self._index = index
        self._texts: list[str] = []

    def begin(self) -> Iterator[Event]:
        """Yield the event before the first delta."""
        yield _item_event("added", self._index, self.item("in_progress"))

    def add(self, text: str, logprobs: Sequence[object]) -> Iterator[Event]:
        """Append text to the arguments, which have no logprobs; the input of a custom tool is known at their end."""
        del logprobs
        self._texts.append(text)
        if not self._origin.is_custom:
            yield "response.function_call_arguments.delta", {**self._place(), "delta": text}

    def end(self, status: str) -> Iterator[Event]:
        """Yield the events after the last delta."""
        if self._origin.is_custom:
            text = self._input()
            yield "response.custom_tool_call_input.delta", {**self._place(), "delta": text}
            yield "response.custom_tool_call_input.done", {**self._place(), "input": text}
        else:
            done = {**self._place(), "name": self._origin.name, "arguments": "".join(self._texts)}
            yield "response.function_call_arguments.done", done
        yield _item_event("done", self._index, self.item(status))

    def item(self, status: str) -> dict[str, object]:
        """Return the item with its arguments so far."""
        is_custom, namespace = self._origin.is_custom, self._origin.namespace
        return {
            "id": self._id,
            "type": "custom_tool_call" if is_custom else "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._origin.name,
            **({} if namespace is None else {"namespace": namespace}),
            **({"input": self._input()} if is_custom else {"arguments": "".join(self._texts)}),
        }

    def _input(self) -> str:
        return custom_input("".join(self._texts)) if self._texts else ""

    def _place(self) -> dict[str, object]:
        return {"item_id": self._id, "output_index": self._index}


def _item_event(suffix: str, index: int, item: dict[str, object]) -> Event:
    return f"response.output_item.{suffix}", {"output_index": index, "item": item}
