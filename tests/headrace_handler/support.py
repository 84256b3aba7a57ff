"""A reply that records what a contract sends, and calls without a child process."""

import contextlib
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace_handler import standins
from headrace_handler.contract import Call, Cancelled, Contract, Headers, Item, Mode, Part

STANDINS = Path(next(iter(standins.__path__)))


class RecordingReply:
    """A `Reply` that keeps all parts and checks the order of calls."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.phrase = ""
        self.headers: list[tuple[str, str]] = []
        self.chunks: list[bytes] = []
        self.has_ended = False
        self.aborted: str | None = None
        self.is_cancelled = False

    @property
    def has_head(self) -> bool:
        return self.status is not None

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def head(self, status: int, headers: Headers = (), *, phrase: str = "") -> None:
        assert self.status is None
        self.status, self.headers, self.phrase = status, list(headers), phrase

    def data(self, chunk: bytes | bytearray | memoryview) -> None:
        if self.is_cancelled:
            raise Cancelled
        assert self.has_head
        assert not self.is_over
        self.chunks.append(bytes(chunk))

    def end(self, last: bytes | bytearray | memoryview = b"") -> None:
        assert self.has_head
        assert not self.is_over
        if last and not self.is_cancelled:
            self.chunks.append(bytes(last))
        self.has_ended = True

    def abort(self, message: str) -> None:
        assert self.has_head
        assert not self.is_over
        self.aborted = message

    @property
    def is_over(self) -> bool:
        return self.has_ended or self.aborted is not None


def make_item(
    body: bytes | Sequence[Part] = b"",
    *,
    content_type: str | None = None,
    headers: Headers = (),
    query: Headers = (),
    path: str = "/invocations",
    request_id: str = "r-0",
) -> tuple[Item, RecordingReply]:
    """Return a request and its recording reply."""
    reply = RecordingReply()
    parts = [Part(name="", content_type=content_type, content=bytearray(body))] if isinstance(body, bytes) else body
    sent = [*headers, *([("Content-Type", content_type)] if content_type else [])]
    return Item(request_id=request_id, headers=sent, query=query, path=path, parts=parts, reply=reply), reply


def call(contract: Contract, *bodies: bytes, mode: Mode = "predict", **request: Any) -> list[RecordingReply]:
    """Call a contract with a batch of bodies, and check that each item is answered."""
    made = [make_item(body, request_id=f"r-{index}", **request) for index, body in enumerate(bodies)]
    contract.call(Call(mode=mode, items=[item for item, _ in made]))
    replies = [reply for _, reply in made]
    assert all(reply.is_over for reply in replies)
    return replies


@contextlib.contextmanager
def imports_of_a_child(*standin_names: str) -> Iterator[None]:
    """Make the stand-ins importable, and forget what is imported meanwhile from models and stand-ins."""
    path, before = list(sys.path), set(sys.modules)
    sys.path.append(str(STANDINS))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            is_standin = name.partition(".")[0] in standin_names
            is_installed = not file or "site-packages" in file or file.startswith(sys.base_prefix) or "headrace" in name
            if is_standin or not is_installed:
                del sys.modules[name]
