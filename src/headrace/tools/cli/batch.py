"""
Run a file of prompts through an engine: JSON lines in, JSON lines out, in the same order.

Every line of the output, failed ones included, belongs to the line of the input with the same number. So an
interrupted run can resume: the number of output lines is the number of finished prompts.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import msgspec

from headrace.core.errors import Busy, HeadraceError, InvalidRequest, SettingsError
from headrace.core.generation import ChatPrompt, GenerationRequest, SamplingParams
from headrace.tools.cli.answers import answer_values, collect
from headrace.tools.cli.sources import Source
from headrace.tools.cli.tables import count_of

_SAMPLING_NAMES = frozenset(field.name for field in fields(SamplingParams))


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A line of the input: its request, or the reason why it has none."""

    index: int
    id: object
    """The `id` of the line, or None."""
    request: GenerationRequest | InvalidRequest


def parse_items(lines: Iterable[str], base: SamplingParams) -> Iterator[Item]:
    """
    Parse the input: `{"prompt": "..."}` or `{"messages": [...]}`, with `id` and any sampling option by its name.

    Blank lines are skipped. An invalid line becomes an item with an error; the others still run.
    """
    kept = (line for line in lines if line.strip())
    for index, line in enumerate(kept):
        item_id: object = None
        request: GenerationRequest | InvalidRequest
        try:
            row = _row(line)
            item_id = row.pop("id", None)
            request = _request(row, base)
        except InvalidRequest as error:
            request = error
        yield Item(index=index, id=item_id, request=request)


def _row(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"The line is not JSON: {error}.") from error
    if not isinstance(row, dict):
        raise InvalidRequest(f"The line is {line.strip()[:40]}; expected an object with 'prompt' or 'messages'.")
    return row


def _request(row: dict[str, Any], base: SamplingParams) -> GenerationRequest:
    prompt, messages = row.pop("prompt", None), row.pop("messages", None)
    if prompt is None and isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        prompt = ChatPrompt(messages=messages)
    elif not isinstance(prompt, str) or messages is not None:
        raise InvalidRequest("The line needs either a string 'prompt' or a list 'messages' of objects.")
    unknown = sorted(row.keys() - _SAMPLING_NAMES)
    if unknown:
        raise InvalidRequest(f"The line has {unknown[0]!r}; expected id, prompt, messages, or a sampling option.")
    try:
        sampling = msgspec.convert({**asdict(base), **row}, type=SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"A sampling option is invalid: {error}.") from error
    return prompt_request(prompt, sampling)


def prompt_request(prompt: str | ChatPrompt, sampling: SamplingParams) -> GenerationRequest:
    """Return the request for a text to continue or for a chat, whose reasoning is separated."""
    separates_reasoning = isinstance(prompt, ChatPrompt)
    return GenerationRequest(
        request_id=uuid4().hex, prompt=prompt, sampling=sampling, separates_reasoning=separates_reasoning
    )


def lines_done(output: Path, items: list[Item]) -> int:
    """
    Return the number of items that the output already has. A last line cut off by a crash is removed.

    Raises:
        SettingsError: the output does not belong to this input.
    """
    if not output.exists():
        return 0
    content = output.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with output.open("r+b") as file:
            file.truncate(len(whole))
    rows = [_output_row(line, output) for line in whole.splitlines()]
    agrees = len(rows) <= len(items) and all(
        row.get("index") == item.index and row.get("id") == item.id for row, item in zip(rows, items, strict=False)
    )
    if not agrees:
        raise SettingsError(f"{output} has answers to another input. Name another --output, or pass --overwrite.")
    return len(rows)


def _output_row(line: bytes, output: Path) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise SettingsError(f"{output} is not the output of a batch. Name another --output, or pass --overwrite.")
    return row


class OrderedWriter:
    """Writes lines in the order of their numbers, whatever the order of arrival."""

    def __init__(self, file: IO[str], *, first: int) -> None:
        self._file = file
        self._next = first
        self._waiting: dict[int, str] = {}

    def put(self, index: int, line: str) -> None:
        """Write the line, or keep it until the lines before it have arrived."""
        self._waiting[index] = line
        while self._next in self._waiting:
            self._file.write(self._waiting.pop(self._next) + "\n")
            self._next += 1
        self._file.flush()


OnDone = Callable[[dict[str, Any]], None]


async def run_items(
    source: Source, items: Iterable[Item], writer: OrderedWriter, *, num_in_flight: int, on_done: OnDone
) -> None:
    """Run all items with `num_in_flight` requests in flight, so that the engine can always fill its batch."""
    remaining = iter(items)

    async def work() -> None:
        for item in remaining:
            row = await _answer_item(source, item)
            writer.put(item.index, json.dumps(row, ensure_ascii=False))
            on_done(row)

    async with asyncio.TaskGroup() as group:
        for _ in range(num_in_flight):
            group.create_task(work())


async def _answer_item(source: Source, item: Item) -> dict[str, Any]:
    head = {"index": item.index, **({} if item.id is None else {"id": item.id})}
    try:
        if isinstance(item.request, InvalidRequest):
            raise item.request
        while True:
            try:
                return {**head, **answer_values(await collect(source, item.request))}
            except Busy as error:
                await asyncio.sleep(error.retry_after_s)
    except HeadraceError as error:
        return {**head, "error": {"code": error.code, "message": error.message}}


class Totals:
    """Counts and speed of a batch."""

    def __init__(self, num_items: int, num_done: int) -> None:
        self.num_items = num_items
        self.num_done = num_done
        self._num_before = num_done
        self._num_failed = 0
        self._num_tokens = 0
        self._started_s = time.perf_counter()

    def add(self, row: dict[str, Any]) -> None:
        """Count a line of the output."""
        self.num_done += 1
        self._num_failed += "error" in row
        self._num_tokens += sum(choice.get("output_tokens", 0) for choice in row.get("choices", [row]))

    def line(self) -> str:
        """Return a summary such as `12 prompts, 340 tokens in 2.1 s (160 tokens/s)`."""
        seconds = max(time.perf_counter() - self._started_s, 1e-9)
        before = f", {self._num_before} done before" if self._num_before else ""
        failed = f", {self._num_failed} failed" if self._num_failed else ""
        speed = f"{self._num_tokens:,} tokens in {seconds:.1f} s ({self._num_tokens / seconds:,.0f} tokens/s)"
        return f"{count_of(self.num_done - self._num_before, 'prompt')}{failed}{before}, {speed}"
