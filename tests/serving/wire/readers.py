"""
Readers of streams that behave like those in AWS's published samples, reimplemented.

Each takes an event stream as boto3 gives it: `{"PayloadPart": {"Bytes": ...}}`.
"""

import io
import json
from collections.abc import Iterable, Iterator


def as_events(parts: Iterable[bytes]) -> list[dict]:
    """Parts of a body as boto3's events."""
    return [{"PayloadPart": {"Bytes": part}} for part in parts]


class Lines:
    """Whole lines from parts split anywhere; like the published one, it never ends if the last line has no newline."""

    def __init__(self, events: Iterable[dict]) -> None:
        self._events = iter(events)
        self._buffer = io.BytesIO()
        self._position = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while True:
            self._buffer.seek(self._position)
            line = self._buffer.readline()
            if line and line[-1] == ord("\n"):
                self._position += len(line)
                return line[:-1]
            try:
                event = next(self._events)
            except StopIteration:
                assert self._position == self._buffer.getbuffer().nbytes, "the published reader would spin forever"
                raise
            self._buffer.seek(0, io.SEEK_END)
            self._buffer.write(event["PayloadPart"]["Bytes"])


def read_tgi(events: Iterable[dict], *, stop_token: str = "</s>") -> str:
    """The text as the TGI notebooks print it (also used on LMI's lines)."""
    texts = []
    for line in Lines(events):
        if line != b"" and b"{" in line:
            data = json.loads(line[line.find(b"{") :].decode("utf-8"))
            if data["token"]["text"] != stop_token:
                texts.append(data["token"]["text"])
    return "".join(texts)


def read_lmi_fragments(events: Iterable[dict]) -> str:
    """The text as the LMI 0.25 notebooks print it: each part by itself, head and tail stripped as character sets."""
    texts = []
    for event in events:
        buffer = io.BytesIO(event["PayloadPart"]["Bytes"])
        while line := buffer.readline():
            if line.startswith(b'{"generated_text": "'):
                line = line.lstrip(b'{"generated_text": "')  # eats text as well
            if line.endswith(b'"}'):
                line = line.rstrip(b'"}')
            texts.append(line.decode("utf-8").replace("\\n", "\n"))
    return "".join(texts)


def read_outputs(events: Iterable[dict]) -> str:
    """The text of `{"outputs": [...]}` lines."""
    return "".join(json.loads(line)["outputs"][0] for line in Lines(events))


def read_details(events: Iterable[dict]) -> tuple[str, str | None, list[float], str | None]:
    """Joined text, generated text, logprobs and finish reason, as the LMI 0.26 notebook with `details` reads them."""
    texts: list[str] = []
    logprobs: list[float] = []
    generated = reason = None
    for line in Lines(events):
        data = json.loads(line)
        if data["token"].get("text") is not None:
            texts.append(data["token"]["text"])
            logprobs.append(data["token"]["log_prob"])
        elif data["generated_text"] is not None:
            generated = data["generated_text"]
        if data.get("details") is not None:
            reason = data["details"]["finish_reason"]
    return "".join(texts), generated, logprobs, reason


def read_torchserve(events: Iterable[dict]) -> Iterator[str]:
    """The lines that the TorchServe notebook prints: each part is taken for lines that end in one byte to drop."""
    buffer = io.BytesIO()
    position = 0
    for event in events:
        buffer.seek(0, io.SEEK_END)
        buffer.write(event["PayloadPart"]["Bytes"])
        buffer.seek(position)
        for line in buffer.readlines():
            position += len(line)
            yield line[:-1].decode("utf-8")
