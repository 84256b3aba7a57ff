"""Send one request of the load in any dialect and record its response."""

import json
import time
from dataclasses import dataclass, field
from http import HTTPStatus

from headrace.tools.bench.dialects import (
    PATHS,
    Event,
    RequestTemplate,
    Unreadable,
    error_text,
    parse_line,
    request_body,
)
from headrace.tools.bench.http1 import ConnectionFailed, Exchange, HttpClient, Truncated
from headrace.tools.bench.measure import Failure, RequestRecord
from headrace.tools.bench.workload import PlannedRequest


@dataclass(slots=True)
class Answer:
    """A streamed answer: its text, the times of its pieces, and the token counts of the server."""

    text: str = ""
    text_at_s: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    is_whole: bool = False
    error: str | None = None

    def add(self, event: Event, at_s: float) -> None:
        """Add one event."""
        if event.text:
            self.text += event.text
            self.text_at_s.append(at_s)
        self.prompt_tokens = self.prompt_tokens if event.prompt_tokens is None else event.prompt_tokens
        self.output_tokens = self.output_tokens if event.output_tokens is None else event.output_tokens
        self.cached_tokens = self.cached_tokens if event.cached_tokens is None else event.cached_tokens
        self.is_whole |= event.is_last
        self.error = self.error or event.error


def read_answer(exchange: Exchange) -> Answer:
    """
    Assemble the pieces of a streamed body. The time of a line is that of its last byte.

    This runs after the end of the answer, so that parsing JSON does not delay the timestamps of other streams.

    Raises:
        Unreadable: a line has an unknown format.
    """
    answer = Answer()
    pending = b""
    for piece in exchange.pieces:
        *lines, pending = (pending + piece.data).split(b"\n")
        for line in lines:
            event = parse_line(line)
            if event is not None:
                answer.add(event, piece.at_s)
    if pending.strip() and (event := parse_line(pending)) is not None:
        answer.add(event, exchange.pieces[-1].at_s)
    if "json" in exchange.headers.get("content-type", "") and not answer.error:
        answer.is_whole = True  # JSON lines have no end marker; HTTP framing guarantees that the body is complete
    return answer


class LoadClient:
    """Sends planned requests and records times relative to `start_s`."""

    def __init__(self, http: HttpClient, template: RequestTemplate) -> None:
        self._http = http
        self._template = template
        self.start_s = time.perf_counter()

    def now_s(self) -> float:
        """Return the seconds since the start of the run."""
        return time.perf_counter() - self.start_s

    async def send(self, planned: PlannedRequest, *, due_s: float) -> RequestRecord:
        """Send one request and wait for the end of its answer. Failures are recorded, never raised."""
        body = request_body(self._template, planned.question, planned.max_tokens)
        sent_s = self.now_s()
        answer, failure, message = Answer(), None, ""
        try:
            exchange = await self._http.fetch("POST", PATHS[self._template.api], body, accept=_ACCEPT)
            if exchange.status == 200:
                answer = read_answer(exchange)
                failure, message = judge(answer)
            else:
                failure, message = judge_status(exchange.status, exchange.content())
        except (ConnectionFailed, Truncated, Unreadable, TimeoutError) as error:
            failure = next(kind for known, kind in _FAILURES.items() if isinstance(error, known))
            message = str(error) or "no complete answer in time"
        return RequestRecord(
            index=planned.index,
            due_s=due_s,
            sent_s=sent_s,
            end_s=self.now_s(),
            text_at_s=tuple(at_s - self.start_s for at_s in answer.text_at_s),
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            cached_tokens=answer.cached_tokens,
            text_chars=len(answer.text),
            failure=failure,
            message=message,
        )


_ACCEPT = "text/event-stream, application/jsonlines, application/json"

_FAILURES: dict[type[BaseException], Failure] = {
    ConnectionFailed: Failure.CONNECT,
    Truncated: Failure.TRUNCATED,
    Unreadable: Failure.UNREADABLE,
    TimeoutError: Failure.TIMEOUT,
}


def judge(answer: Answer) -> tuple[Failure | None, str]:
    """Return the failure of a response with status 200, or None if it is complete."""
    if answer.error:
        return Failure.STREAM_ERROR, answer.error
    if not answer.is_whole:
        return Failure.TRUNCATED, "the stream ended without its last event"
    return None, ""


_KEY_HINT = (
    "Set HEADRACE_API_KEY or give --api-key. On a platform it is the secret of an access key, which a shell with the "
    "variables of `headrace env` uses."
)


def judge_status(status: int, body: bytes) -> tuple[Failure, str]:
    """Return the failure that another status means, with the server's message."""
    try:
        words = error_text(json.loads(body))
    except ValueError:
        words = body[:300].decode("utf-8", errors="replace").strip()
    message = f"HTTP {status}: {words}" + (f" {_KEY_HINT}" if status == HTTPStatus.UNAUTHORIZED else "")
    if status in {429, 503}:
        return Failure.BUSY, message
    return (Failure.SERVER_ERROR if status >= 500 else Failure.CLIENT_ERROR), message
