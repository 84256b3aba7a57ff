"""
A batch of requests: its state, the lines of its input, and the line of a result. Pure, and shared by the dialects.

The input and the results are OpenAI's JSON Lines; Anthropic's dialect converts them at its edge.
Source: OpenAI API reference, "Batch"; guide "Batch API". The codes of errors of lines: Azure OpenAI, "Batch", table of
error codes, which are OpenAI's.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec

from headrace.core.client_text import shortened
from headrace.serving.wire.framing import to_json
from headrace.serving.wire.unknown_routes import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES

ENDPOINTS: Final = (RESPONSES, CHAT, EMBEDDINGS, COMPLETIONS)
"""The endpoints of OpenAI's batches."""
WINDOW_S: Final = 86_400.0
"""OpenAI's only completion window, `24h`, which is Anthropic's, too."""
MAX_LINES: Final = 50_000
MAX_ERRORS: Final = 100
"""Errors of lines that a batch reports; the first ones say what is wrong."""
MAX_ID_CHARACTERS: Final = 512

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelled"]
ENDED: Final = frozenset({"failed", "completed", "expired", "cancelled"})
Unanswered = Literal["batch_expired", "batch_cancelled"]
"""The code of a request that was not executed."""

_UNANSWERED: Final[Mapping[Unanswered, str]] = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "The batch was cancelled before this request was executed.",
}


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """An error of the input file, by which the whole batch fails."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """Counted from 1."""


class TokenUsage(msgspec.Struct, kw_only=True):
    """The tokens of all answers of a batch."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class Counts(msgspec.Struct, kw_only=True):
    """The lines of a batch by their outcome."""

    completed: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it is stored; times are seconds since 1970."""

    id: str
    endpoint: str
    input_file_id: str
    """Empty if the requests came in the body that created the batch, as Anthropic's do."""
    created_s: float
    expires_s: float
    caller: str = ""
    """The id of the access key that created it; empty where callers are not distinguished."""
    prefix: str = ""
    """What precedes `/v1` in the paths of the requests; it names an endpoint of a platform."""
    status: Status = "validating"
    outcome: Status = "completed"
    """The status after `finalizing`."""
    reached_s: dict[str, float] = {}
    """Status → when the batch got it."""
    metadata: dict[str, str] | None = None
    output_age_s: float | None = None
    """Time for which output and error file are kept."""
    model: str | None = None
    total: int = 0
    counts: Counts = msgspec.field(default_factory=Counts)
    usage: TokenUsage = msgspec.field(default_factory=TokenUsage)
    errors: tuple[LineError, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def is_messages(self) -> bool:
        """True for a batch of Anthropic's API."""
        return self.endpoint == MESSAGES

    def at(self, status: Status, now_s: float) -> "Batch":
        """Return the batch with another status."""
        return msgspec.structs.replace(self, status=status, reached_s={**self.reached_s, status: now_s})


class Line(msgspec.Struct, frozen=True):
    """A line of an input file."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Head(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None


_decode_line = msgspec.json.Decoder(Line).decode
_decode_head = msgspec.json.Decoder(_Head).decode


class BrokenLine(Exception):
    """A line of the input is not a request; the first value is the error."""

    def __init__(self, error: LineError) -> None:
        super().__init__(error.message)
        self.error = error


def read_line(text: bytes) -> Line:
    """Read a line that was checked, or raise `BrokenLine`."""
    try:
        return _decode_line(text)
    except msgspec.ValidationError as error:
        message = str(error)
        missing = message.partition("missing required field `")[2].partition("`")[0]
        code = "missing_required_parameter" if missing else "invalid_request"
        raise BrokenLine(LineError(code=code, message=f"{message}.", param=missing or None)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text_of = "This line is not parseable as valid JSON."
        raise BrokenLine(LineError(code="invalid_json_line", message=text_of)) from error


class InputCheck:
    """Checks the lines of one input file, one after the other."""

    def __init__(self, endpoint: str, *, max_lines: int = MAX_LINES) -> None:
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._seen: set[str] = set()
        self.errors: list[LineError] = []
        self.model: str | None = None
        self.total = 0

    def add(self, number: int, text: bytes | None) -> bool:
        """Check a line, None if it is longer than a request may be; return whether more lines are of interest."""
        self.total += 1
        if self.total > self._max_lines:
            message = f"The file has more than {self._max_lines} requests; expected at most so many. Split it."
            self.errors = [LineError(code="too_many_tasks", message=message)]
            return False
        error = self._error_of(text)
        if error is not None:
            self.errors.append(msgspec.structs.replace(error, line=number))
        return len(self.errors) < MAX_ERRORS

    def end(self) -> None:
        """Note that all lines were added."""
        if not self.total:
            self.errors.append(LineError(code="empty_file", message="The file has no requests; expected one a line."))

    def _error_of(self, text: bytes | None) -> LineError | None:
        if text is None:
            return LineError(code="line_too_long", message="The line is longer than the body of a request may be.")
        try:
            line = read_line(text)
            head = _decode_head(bytes(line.body))
        except BrokenLine as error:
            return error.error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return LineError(code="invalid_request", message=f"The body is not a request: {error}.", param="body")
        return next(self._faults(line, head), None)

    def _faults(self, line: Line, head: _Head) -> Iterator[LineError]:
        def fault(code: str, param: str, message: str) -> LineError:
            return LineError(code=code, message=message, param=param)

        if not 0 < len(line.custom_id) <= MAX_ID_CHARACTERS:
            text = f"custom_id has {len(line.custom_id)} characters; expected 1 to {MAX_ID_CHARACTERS}."
            yield fault("invalid_custom_id", "custom_id", text)
        if line.custom_id in self._seen:
            text = f"The custom_id {shortened(line.custom_id)} was used before; expected another one in each line."
            yield fault("duplicate_custom_id", "custom_id", text)
        self._seen.add(line.custom_id)
        if line.method != "POST":
            yield fault("invalid_method", "method", f"method is {shortened(line.method)}; expected POST.")
        if line.url != self._endpoint:
            text = f"url is {shortened(line.url)}; expected {self._endpoint}, the endpoint of the batch."
            yield fault("url_mismatch", "url", text)
        if head.stream:
            text = "stream is true; expected false: the answer of a batch is a line of a file."
            yield fault("invalid_request", "body.stream", text)
        if not head.model:
            yield fault("missing_required_parameter", "body.model", "model is missing; expected its name.")
        self.model = self.model or head.model
        if head.model != self.model and self._endpoint != MESSAGES:
            text = f"model is {shortened(head.model or '')} and that of earlier lines {shortened(self.model or '')}"
            yield fault("model_mismatch", "body.model", f"{text}; expected one model.")


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    """The usage of an answer in any of the dialects."""

    input_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    completion_tokens: int = 0
    input_tokens_details: _PromptDetails | None = None
    prompt_tokens_details: _PromptDetails | None = None
    output_tokens_details: _OutputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class ResultError(msgspec.Struct):
    """The error of a request that got no response."""

    code: str
    message: str


class Result(msgspec.Struct):
    """A line of an output or error file."""

    custom_id: str
    response: _Response | None = None
    error: ResultError | None = None


read_result = msgspec.json.Decoder(Result).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


def add_usage(usage: TokenUsage, body: bytes) -> None:
    """Add the tokens of an answer, if it says how many."""
    try:
        found = _decode_answer(body).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if found is None:
        return
    usage.input_tokens += found.input_tokens + found.prompt_tokens
    usage.output_tokens += found.output_tokens + found.completion_tokens
    for details in filter(None, (found.input_tokens_details, found.prompt_tokens_details)):
        usage.cached_tokens += details.cached_tokens or 0
    for more in filter(None, (found.output_tokens_details, found.completion_tokens_details)):
        usage.reasoning_tokens += more.reasoning_tokens or 0


def render_result(custom_id: str, *, request_id: str, status: int, body: bytes) -> bytes:
    """Render the line of a request that was executed."""
    response = {"status_code": status, "request_id": request_id, "body": _embedded(body)}
    return _result_line(f"batch_req_{request_id}", custom_id, response=response, error=None)


def render_unanswered(custom_id: str, code: Unanswered, *, request_id: str) -> bytes:
    """Render the line of a request that was not executed."""
    error = {"code": code, "message": _UNANSWERED[code]}
    return _result_line(f"batch_req_{request_id}", custom_id, response=None, error=error)


def _result_line(line_id: str, custom_id: str, *, response: object, error: object) -> bytes:
    return to_json({"id": line_id, "custom_id": custom_id, "response": response, "error": error}) + b"\n"


def _embedded(body: bytes) -> msgspec.Raw | str:
    """Return a JSON body on one line, or another body as text: the model's own image may send either."""
    try:
        _decode_raw(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace")
    return msgspec.Raw(body.replace(b"\r", b" ").replace(b"\n", b" "))
