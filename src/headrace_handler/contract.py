"""
The interface between the child process and a contract: requests of the model server, and answers of user code.

A contract loads user code once and is called with batches of requests. It renders whole responses, errors included,
because their status codes and texts belong to the contract. The model server reports only what a child cannot: that it
ended, was too slow, or that its queue is full.
"""

import json
from asyncio import AbstractEventLoop
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Headers = Sequence[tuple[str, str]]
"""Names as the client or the user's code wrote them, in order."""

Mode = Literal["predict", "explain", "describe", "adapter", "format"]
"""`format`: the code only changes requests and responses of the model server's own engine (DJL's formatters)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The user code to load, as the model server found it in the model's folder and its settings."""

    model_name: str
    model_dir: Path
    """Also the current directory of the child."""
    entry: str
    """A file relative to `model_dir`, an absolute file, or the name of a module; by contract also with a function."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Settings of the contract, such as those of `serving.properties`."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """TorchServe: `MAR-INF/MANIFEST.json`."""
    model_config: Mapping[str, Any] = field(default_factory=dict)
    """TorchServe: `model-config.yaml`."""
    device: int | None = None
    """Index of the GPU; None: the CPU."""
    batch_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a request body: a form field, a query parameter as the contract reads it, or the whole body."""

    name: str
    """Empty for a body that is not a form."""
    content_type: str | None = None
    content: bytearray


class Cancelled(Exception):
    """The client has disconnected: nothing more is sent, and the code should stop."""


class Reply(Protocol):
    """
    The response to one item, sent as it is produced; safe to use from any thread.

    The calls are `head`, then any number of `data`, then `end` or `abort`. The head is sent with the first part or at
    the end.
    """

    def head(self, status: int, headers: Headers = (), *, phrase: str = "") -> None: ...

    def data(self, chunk: bytes | bytearray | memoryview) -> None:
        """
        Send a part, which becomes one HTTP chunk; block while the client does not keep up.

        Raises `Cancelled`: the client has disconnected.
        """
        ...

    def end(self, last: bytes | bytearray | memoryview = b"") -> None:
        """
        Send the last part, if there is one, and end the response; never blocks, and ignores a disconnected client.

        Without a `data` before it, `last` is the whole body, sent with a Content-Length and not in chunks.
        """
        ...

    def abort(self, message: str) -> None:
        """End a response that has begun and cannot be completed: the client sees a broken stream."""
        ...

    @property
    def is_cancelled(self) -> bool: ...

    @property
    def has_head(self) -> bool:
        """True once the response has begun, so that its status can no longer change."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    request_id: str
    method: str = "POST"
    path: str = "/invocations"
    """Without the query; TorchServe: the rest after the model's name."""
    headers: Headers = ()
    query: Headers = ()
    parts: Sequence[Part] = ()
    reply: Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A batch of requests for one call of user code."""

    mode: Mode = "predict"
    items: Sequence[Item]


class LoadFailed(Exception):
    """
    User code cannot be loaded.

    Attributes:
        status: the status by the contract, e.g. 507 for a lack of memory.
        message: what failed, for the log and for the platform's FailureReason. The traceback is logged, too.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Contract(Protocol):
    """User code behind one contract."""

    def load(self, load: Load) -> None:
        """
        Import and initialize the code; called once, on the main thread.

        Raises `LoadFailed`: with the contract's status and text.
        """
        ...

    def call(self, call: Call) -> None:
        """
        Answer every item; called on the main thread, one call at a time. An exception ends the child.

        Errors of user code are answered as the contract says and logged with `logging.exception`.
        """
        ...


class AsyncContract(Contract, Protocol):
    """A contract whose code can be asynchronous: many calls then run at once on an event loop of the main thread."""

    @property
    def loop(self) -> AbstractEventLoop | None:
        """
        The event loop on which `load` ran the code, and on which `call_async` must run it.

        None: the code that was loaded is synchronous; use `call`. A contract without this attribute always is.
        """
        ...

    async def call_async(self, call: Call) -> None:
        """As `Contract.call`; `Reply.data` then runs in a thread."""
        ...


def error_body(status: int, kind: str, message: str) -> bytes:
    """Return the body of an error, as the Java servers write it: TorchServe, DJL Serving, Multi Model Server."""
    return json.dumps({"code": status, "type": kind, "message": message}, indent=2).encode() + b"\n"
