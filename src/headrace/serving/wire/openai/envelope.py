"""
Common parts of OpenAI's answers: ids, usage, finish reasons, logprobs, errors, and the framing of streamed objects.

Logprobs have two formats: parallel lists (completions) and one object per token (chat). Errors are
`{"error": {"message", "type", "param", "code"}}`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import version as package_version
from types import MappingProxyType

from headrace.core import errors
from headrace.core.generation import Finish, FinishReason, ModelInfo, Token, TokenLogprob
from headrace.serving.wire import framing
from headrace.serving.wire.answers import Usage, finite_logprob
from headrace.serving.wire.dialect import ClosingStream, ErrorReply, RequestContext, Timings, retry_headers
from headrace.serving.wire.framing import json_line, sse_event, to_json
from headrace.serving.wire.openai.parameters import CommonFields, Framing, is_stream


def error_body(error: errors.HeadraceError, *, prompt: str = "messages") -> bytes:
    """Render the JSON object for an error, in a body or a stream; `prompt` names the field that was too long."""
    return to_json({"error": error_object(error, prompt=prompt)})


def error_object(error: errors.HeadraceError, *, prompt: str = "messages") -> dict[str, object]:
    param = error.param if isinstance(error, errors.InvalidRequest) else None
    if isinstance(error, errors.ModelNotFound):
        param = "model"
    kind = "invalid_request_error" if isinstance(error, errors.UserError) else "server_error"
    if isinstance(error, errors.Busy):
        kind = "rate_limit_error"
    return {"message": _message(error, prompt), "type": kind, "param": param, "code": _code(error)}


def render_error(error: errors.HeadraceError, *, prompt: str = "messages") -> ErrorReply:
    body = error_body(error, prompt=prompt)
    return ErrorReply(status=error.http_status, body=body, headers=retry_headers(error))


def _message(error: errors.HeadraceError, prompt: str) -> str:
    """Return OpenAI's text if clients match it (`maximum context length`), else the error's own."""
    if isinstance(error, errors.ContextTooLong):
        return (
            f"This model's maximum context length is {error.max_total_tokens} tokens. However, you requested "
            f"{error.prompt_tokens + error.max_new_tokens} tokens ({error.prompt_tokens} in the {prompt}, "
            f"{error.max_new_tokens} in the completion). Please reduce the length of the {prompt} or completion."
        )
    if isinstance(error, errors.PromptTooLong):
        return (
            f"This model's maximum context length is {error.max_prompt_tokens} tokens for the prompt. However, your "
            f"{prompt} resulted in {error.prompt_tokens} tokens. Please reduce the length of the {prompt}."
        )
    return error.message


def _code(error: errors.HeadraceError) -> str | None:
    if isinstance(error, errors.ContextTooLong | errors.PromptTooLong):
        return "context_length_exceeded"
    if isinstance(error, errors.Busy):
        return "rate_limit_exceeded"
    if isinstance(error, errors.Unauthorized):
        return "invalid_api_key"
    if type(error) is errors.InvalidRequest:
        return None
    return error.code


def visible(tokens: Iterable[Token], *, with_special: bool) -> list[Token]:
    """Return the tokens that make up the text, without the end-of-sequence token."""
    return [token for token in tokens if with_special or not token.special]


def chat_logprobs(tokens: Sequence[Token], options: "EnvelopeOptions") -> dict[str, object]:
    num_top = options.num_top_logprobs or 0
    return {"content": token_logprobs(tokens, num_top=num_top, as_ids=options.names_ids), "refusal": None}


def token_logprobs(tokens: Iterable[Token], *, num_top: int, as_ids: bool = False) -> list[dict[str, object]]:
    """Return the logprobs of a chat completion's or a response's tokens; `as_ids`: which are named by their ids."""
    return [
        {
            **_logprob(_name(token, as_ids), token.logprob, token.raw or token.text.encode()),
            "top_logprobs": [
                _logprob(_id_name(top) if as_ids else top.text, top.logprob, top.text.encode())
                for top in token.top[:num_top]
            ],
        }
        for token in tokens
    ]


def _logprob(name: str, logprob: float | None, raw: bytes) -> dict[str, object]:
    return {"token": name, "logprob": finite_logprob(logprob), "bytes": list(raw)}


def completion_logprobs(
    tokens: Sequence[Token], options: "EnvelopeOptions", *, offset: int
) -> tuple[dict[str, object], int]:
    """Return `choices[].logprobs` of a completion from character `offset` on, and the offset after it."""
    num_top, as_ids, with_special = options.num_top_logprobs or 0, options.names_ids, options.with_special

    def top(token: Token) -> dict[str, float | None] | None:
        best = {
            _id_name(other) if as_ids else other.text: finite_logprob(other.logprob) for other in token.top[:num_top]
        }
        return None if token.logprob is None else {**best, _name(token, as_ids): finite_logprob(token.logprob)}

    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += 0 if token.special and not with_special else len(token.text)
    logprobs: dict[str, object] = {
        "tokens": [_name(token, as_ids) for token in tokens],
        "token_logprobs": [finite_logprob(token.logprob) for token in tokens],
        "top_logprobs": [top(token) for token in tokens] if num_top else None,
        "text_offset": offsets,
    }
    return logprobs, offset


def prompt_logprobs(prompt: Sequence[Token]) -> list[dict[str, object] | None]:
    """Return vLLM's list of the tokens of a prompt: each with its alternatives by their ids, null for the first."""
    return [None if token.logprob is None else _ranked(token) for token in prompt]


def _ranked(token: Token) -> dict[str, object]:
    best = {str(top.id): _with_rank(top, rank) for rank, top in enumerate(token.top, start=1)}
    return {**best, str(token.id): _with_rank(token, token.rank)}


def _with_rank(token: Token | TokenLogprob, rank: int | None) -> dict[str, object]:
    return {"logprob": finite_logprob(token.logprob), "rank": rank, "decoded_token": token.text}


def _id_name(token: Token | TokenLogprob) -> str:
    """Return vLLM's name of a token for `return_tokens_as_token_ids`."""
    return f"token_id:{token.id}"


def _name(token: Token, as_ids: bool) -> str:
    r"""Return the token's text; a partial character is written as OpenAI does, `bytes:\xf0\x9f`."""
    if as_ids:
        return _id_name(token)
    try:
        token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)
    return token.text


DONE = sse_event(b"[DONE]")
UNFINISHED = b'"finish_reason":null'

_FINISH_REASONS = {
    FinishReason.LENGTH: "length",
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.REPETITION: "stop",
}
_STOP_REASONS = {FinishReason.REPETITION: "repetition_detected"}
"""vLLM's values of `stop_reason` where `finish_reason` is too coarse: clients refuse vLLM's `repetition` there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The fields that all objects of an answer share."""

    id: str
    created_s: int
    model: ModelInfo
    framing: Framing
    stream: bool
    include_usage: bool

    @classmethod
    def of(cls, fields: CommonFields, context: RequestContext, prefix: str, framing: Framing) -> "Envelope":
        """Return the envelope of a request. Raises `InvalidRequest`: `stream_options` without `stream`."""
        return cls(
            id=f"{prefix}-{context.request_id}",
            created_s=context.created_s,
            model=context.model,
            framing=framing,
            stream=is_stream(fields),
            include_usage=fields.stream_options is not None and bool(fields.stream_options.include_usage),
        )

    def body(
        self, kind: str, choices: Sequence[object], usage: Usage, more: Mapping[str, object] = MappingProxyType({})
    ) -> bytes:
        return to_json({**self._head(kind), "choices": choices, "usage": usage_object(usage), **more})

    def frame(self, kind: str) -> tuple[bytes, bytes]:
        """Return the bytes before and after the only choice of a streamed object, including its framing."""
        head = to_json(self._head(kind))[:-1] + b',"choices":['
        tail = b'],"usage":null}' if self.include_usage else b"]}"
        if self.framing == "sse":
            return b"data: " + head, tail + b"\n\n"
        return head, tail + b"\n"

    def usage_event(self, kind: str, usage: Usage) -> bytes:
        """Render the last object of a stream, which has `usage` and no choices."""
        return self._framed(to_json({**self._head(kind), "choices": [], "usage": usage_object(usage)}))

    def error_events(self, error: errors.HeadraceError) -> list[bytes]:
        event = self._framed(error_body(error))
        return [event, DONE] if self.framing == "sse" else [event]

    @property
    def end_events(self) -> list[bytes]:
        return [DONE] if self.framing == "sse" else []

    @property
    def keep_alive(self) -> bytes:
        return framing.SSE_KEEP_ALIVE if self.framing == "sse" else b""

    def _head(self, kind: str) -> dict[str, object]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model.name,
            "system_fingerprint": system_fingerprint(self.model),
        }

    def _framed(self, data: bytes) -> bytes:
        return sse_event(data) if self.framing == "sse" else json_line(data)


@lru_cache(maxsize=16)
def system_fingerprint(model: ModelInfo) -> str:
    """Return a hash of what a seeded answer depends on besides the request: weights, formats, kernels, version."""
    facts = (model.name, model.revision, model.dtype, model.kv_dtype, model.device, package_version("headrace"))
    return f"fp_{sha256(repr(facts).encode()).hexdigest()[:10]}"


def usage_object(usage: Usage) -> dict[str, object]:
    reasoning = usage.reasoning_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        **({} if reasoning is None else {"completion_tokens_details": {"reasoning_tokens": reasoning}}),
    }


def finish_reason(finish: Finish) -> str:
    """Return `finish_reason` of a choice without tool calls."""
    return _FINISH_REASONS[finish.reason]


def finish_fields(finish: Finish, reason: str) -> dict[str, str]:
    """Return `finish_reason`, and `stop_reason` of a choice that repeated itself."""
    more = _STOP_REASONS.get(finish.reason)
    return {"finish_reason": reason} if more is None else {"finish_reason": reason, "stop_reason": more}


def streamed_finish(finish: Finish, reason: str) -> bytes:
    """Return `finish_fields` as the last fields of an object that is written in parts."""
    return to_json(finish_fields(finish, reason))[1:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeOptions:
    """Options of a request for the format of its answer, whole or streamed."""

    envelope: Envelope
    num_top_logprobs: int | None
    """Alternatives per token; None: no logprobs."""
    with_special: bool
    returns_ids: bool = False
    """vLLM's `return_token_ids`."""
    names_ids: bool = False
    """vLLM's `return_tokens_as_token_ids`."""
    shows_prompt: bool = False
    """vLLM's `prompt_logprobs`."""


def token_ids(tokens: Iterable[Token]) -> list[int]:
    return [token.id for token in tokens]


@dataclass(frozen=True, slots=True)
class EnvelopeReply:
    """The content type and headers of a reply in an envelope."""

    options: EnvelopeOptions

    @property
    def content_type(self) -> str:
        if not self.options.envelope.stream:
            return framing.JSON_CONTENT_TYPE
        return framing.SSE_CONTENT_TYPE if self.options.envelope.framing == "sse" else framing.JSONLINES_CONTENT_TYPE

    def headers(self, timings: Timings | None) -> tuple[tuple[str, str], ...]:
        del timings
        return framing.UNBUFFERED_HEADERS if self.options.envelope.stream else ()


class EnvelopeStream(ClosingStream):
    """A stream of objects in an envelope, which ends with the usage, if requested, and `[DONE]`."""

    def __init__(self, envelope: Envelope, kind: str) -> None:
        super().__init__()
        self.keep_alive = envelope.keep_alive
        self._envelope = envelope
        self._kind = kind
        self._head, self._tail = envelope.frame(kind)
        self._meter = UsageMeter()

    def _end(self) -> Sequence[bytes]:
        usage = [self._envelope.usage_event(self._kind, self._meter.usage)] if self._envelope.include_usage else []
        return [*usage, *self._envelope.end_events]

    def _error(self, error: errors.HeadraceError) -> Sequence[bytes]:
        return self._envelope.error_events(error)

    def _framed(self, choice: bytes, prompt_ids: Sequence[int] | None = None) -> bytes:
        """Return an object with one choice; `prompt_ids` become a member of the object, as in vLLM's chats."""
        if prompt_ids is None:
            return b"".join((self._head, choice, self._tail))
        return b"".join((self._head, choice, b'],"prompt_token_ids":', to_json(prompt_ids), self._tail[1:]))


class UsageMeter:
    """Sums up the usage of a stream: prompt tokens once per request, output tokens per choice."""

    def __init__(self) -> None:
        self._prompts: dict[int, Finish] = {}
        self._output_tokens = 0
        self._reasoning_tokens: int | None = None

    def add(self, request: int, finish: Finish, reasoning_tokens: int | None = None) -> None:
        self._prompts.setdefault(request, finish)
        self._output_tokens += finish.output_tokens
        if reasoning_tokens is not None:
            self._reasoning_tokens = (self._reasoning_tokens or 0) + reasoning_tokens

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=sum(finish.prompt_tokens for finish in self._prompts.values()),
            output_tokens=self._output_tokens,
            cached_tokens=sum(finish.cached_tokens for finish in self._prompts.values()),
            reasoning_tokens=self._reasoning_tokens,
        )
