"""Models of DJL that a test writes, and calls of their contract without a child process."""

import asyncio
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace_handler.contract import Call, Item, Load, Part
from headrace_handler.contracts import djl
from tests.headrace_handler.support import RecordingReply, imports_of_a_child

LoadModel = Callable[..., Any]


class LeavingReply(RecordingReply):
    """The reply to a client that leaves once it has had some chunks."""

    def __init__(self, *, after: int) -> None:
        super().__init__()
        self._after = after
        self.is_cancelled = after == 0

    def data(self, chunk: bytes | bytearray | memoryview) -> None:
        super().data(chunk)
        self.is_cancelled = len(self.chunks) >= self._after


@pytest.fixture
def djl_imports() -> Iterator[None]:
    with imports_of_a_child("djl_python"):
        yield


@pytest.fixture
def load_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadModel]:
    """Write a `model.py` and load it; the contract is returned."""
    monkeypatch.chdir(tmp_path)
    contracts = []

    def load(code: str | None = None, options: Mapping[str, str] | None = None, *, entry: str = "") -> Any:
        if code is not None:
            (tmp_path / "model.py").write_text(textwrap.dedent(code))
        contract = djl.make()
        contract.load(Load(model_name="tiny", model_dir=tmp_path, entry=entry, options=options or {}))
        contracts.append(contract)
        return contract

    with imports_of_a_child("djl_python"):
        yield load
    for contract in contracts:
        if contract.loop is not None:
            asyncio.set_event_loop(None)
            contract.loop.close()


def item(
    body: bytes | Mapping[str, bytes] = b"",
    headers: Mapping[str, str] | None = None,
    *,
    query: Mapping[str, str] | None = None,
    request_id: str = "request-1",
    path: str = "/invocations",
    reply: RecordingReply | None = None,
) -> Item:
    """Return a request with a body, or with the fields of a form."""
    fields = body if isinstance(body, Mapping) else {"": body}
    return Item(
        request_id=request_id,
        path=path,
        headers=tuple((headers or {}).items()),
        query=tuple((query or {}).items()),
        parts=tuple(Part(name=name, content=bytearray(content)) for name, content in fields.items()),
        reply=reply or RecordingReply(),
    )


def predict(contract: Any, *items: Item, mode: Any = "predict") -> Any:
    """Make one call, and return the reply to its first request."""
    call = Call(mode=mode, items=items)
    if contract.loop is None:
        contract.call(call)
    else:
        contract.loop.run_until_complete(contract.call_async(call))
    assert all(item.reply.is_over or item.reply.is_cancelled for item in items)
    return items[0].reply
