"""
The formatters of a model's own code around the engine, which run in a child process.

The process is that of a handler, with its timeouts, queue, restarts and log lines. There is only one, because all
tokens of a response must reach the same process.
"""

import json
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final, Literal

from headrace.core.errors import Busy, CodeFailed, CodeUnavailable, HeadraceError
from headrace.core.telemetry import get_logger
from headrace.serving.handlers.errors import Refused, WholeResponse
from headrace.serving.handlers.exchange import HandlerRequest, Pairs, request_part
from headrace.serving.handlers.pool import HandlerPool, PoolPhase
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.http.asgi import Scope
from headrace.serving.server.lifecycle import in_daemon_thread

OutputKind = Literal["output", "token"]
"""Form in which a formatter gets responses: whole and by event, or by token."""
Part = Literal["input", "output", "event", "token"]
"""The input of a formatter; see `headrace_handler.contracts.djl.formatters`."""
Prepare = Callable[[HandlerSpec], HandlerSpec]

_FAILED: Final = 424


class Formatters:
    """The process with a model's formatters, and the kinds that it has."""

    def __init__(self, spec: HandlerSpec, *, prepare: Prepare | None = None) -> None:
        """Create the formatters of some code; `prepare` is called on a thread before their process is started."""
        self.changes_input = False
        self.output: OutputKind | None = None
        self.pool = HandlerPool(spec)
        self._spec = spec
        self._prepare = prepare
        self._numbers = count(1)

    async def start(self) -> None:
        """Start the process and ask which formatters it has; raise `LoadError` if the code cannot be loaded."""
        if self._prepare is not None:
            prepare, spec = self._prepare, self._spec
            self.pool = HandlerPool(await in_daemon_thread(lambda: prepare(spec)))
        await self.pool.start()
        try:
            described = await self.ask("describe", HandlerRequest(request_id="", mode="describe"))
        except BaseException:
            await self.pool.close(deadline_s=0)
            raise
        kinds = json.loads(described)["formatters"]
        self.changes_input = "input" in kinds
        self.output = "output" if "output" in kinds else "token" if "token" in kinds else None
        get_logger().info("formatters.ready", model=self._spec.model_name, formatters=kinds)

    async def close(self) -> None:
        """Stop the process; no request may still need it."""
        await self.pool.close(deadline_s=0)

    @property
    def is_healthy(self) -> bool:
        return self.pool.phase is not PoolPhase.FAILED

    def response(self, request_id: str, scope: Scope) -> "FormattedResponse":
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        return FormattedResponse(self, request_id, headers, number=next(self._numbers))

    async def ask(self, part: str, request: HandlerRequest) -> bytes:
        """Return the answer of the process to a request about a part; raise the contract's error."""
        try:
            response = self.pool.submit(request)
        except Refused as refused:
            raise _error_of(refused.response, part) from None
        try:
            head = await response.head()
        finally:
            response.close()
        assert isinstance(head, WholeResponse), "formatters answer in one part"
        if head.status == 200:
            return bytes(head.body)
        raise _error_of(head, part)


class FormattedResponse:
    """The calls of formatters for one request and its response."""

    def __init__(self, formatters: Formatters, request_id: str, headers: Pairs, *, number: int) -> None:
        self.changes_input = formatters.changes_input
        self.output = formatters.output
        self._ask = formatters.ask
        self._request = partial(HandlerRequest, request_id=request_id, mode="format", path=str(number))
        self._headers = headers

    async def format(self, part: Part, content: bytes) -> bytes:
        """
        Run a formatter on a part and return its output.

        Raises:
            CodeFailed: it raised an exception, or cannot take the part.
            CodeUnavailable, Busy: its process has ended, was too slow, or has too many calls waiting.
        """
        parts = [await request_part(content, name=part)]
        return await self._ask(part, self._request(headers=self._headers if part == "input" else (), parts=parts))


def _error_of(response: WholeResponse, part: str) -> HeadraceError:
    body = json.loads(bytes(response.body) or b"{}")
    if response.status == _FAILED:
        return CodeFailed(str(body.get("error", "")), part=part)
    message = str(body.get("message", ""))
    if body.get("type") == "WlmCapacityException":
        return Busy(message)
    return CodeUnavailable(message, part=part)
