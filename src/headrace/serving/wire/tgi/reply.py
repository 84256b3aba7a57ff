"""
TGI's answers: one object, an array of one object (`/`, `/invocations`), or one event per token; its errors and pages.

Source of errors: TGI `router/src/infer/mod.rs` (InferError), `router/src/validation.rs` (ValidationError); of `/info`,
`/tokenize`, `/chat_tokenize` and `/health`: `router/src/server.rs`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import msgspec

from headrace.core import errors
from headrace.core.generation import Chunk, Finish, ModelInfo, RequestLimits, TextSpan, Token, TokenLogprob
from headrace.serving.wire import framing
from headrace.serving.wire.answers import Answer, FinishedChoice, finite_logprob
from headrace.serving.wire.dialect import MAX_CHOICES, ClosingStream, ErrorReply, Timings, retry_headers
from headrace.serving.wire.framing import decode_body, json_number, sse_event, to_json


def error_body(error: errors.HeadraceError) -> bytes:
    """Render the JSON object for an error, in a body or a stream."""
    text, error_type, _ = _translate(error)
    return to_json({"error": text, "error_type": error_type})


def render_error(error: errors.HeadraceError) -> ErrorReply:
    _, _, status = _translate(error)
    return ErrorReply(status=status, body=error_body(error), headers=retry_headers(error))


def _translate(error: errors.HeadraceError) -> tuple[str, str, int]:
    """Return TGI's text, `error_type` and HTTP status."""
    text = error.message
    if isinstance(error, errors.PromptTooLong):
        text = f"`inputs` must have less than {error.max_prompt_tokens} tokens. Given: {error.prompt_tokens}"
    if isinstance(error, errors.ContextTooLong):
        text = (
            f"`inputs` tokens + `max_new_tokens` must be <= {error.max_total_tokens}. "
            f"Given: {error.prompt_tokens} `inputs` tokens and {error.max_new_tokens} `max_new_tokens`"
        )
    if isinstance(error, framing.MalformedBody):
        return f"Failed to parse the request body as JSON: {text}", "validation", 400
    if isinstance(error, errors.InvalidRequest):
        return f"Input validation error: {text}", "validation", 422
    if isinstance(error, errors.Busy):
        return "Model is overloaded", "overloaded", 429
    if isinstance(error, errors.EngineFailed | errors.Internal):
        return f"Request failed during generation: {error.message}", "generation", 424
    if isinstance(error, errors.RequestAborted):
        return "Incomplete generation", "incomplete_generation", 500
    return error.message, error.code, error.http_status


Version = Literal["1.0", "3"]

_FLAGS = {True: b"true", False: b"false"}
_NO_TOKEN = Token(0, "", 0.0, special=True)
"""The token in the last event of an answer that ends without a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiOptions:
    """Options of the request for the format of the answer."""

    version: Version
    stream: bool
    in_array: bool
    details: bool
    top_tokens: bool
    prompt: str
    """The prompt, whose characters are counted for a header."""
    return_full_text: bool

    @property
    def prefix(self) -> str:
        return self.prompt if self.return_full_text else ""


@dataclass(frozen=True, slots=True)
class TgiReply:
    """Renders one answer in TGI's format."""

    options: TgiOptions

    @property
    def content_type(self) -> str:
        return framing.SSE_CONTENT_TYPE if self.options.stream else framing.JSON_CONTENT_TYPE

    def headers(self, timings: Timings | None) -> tuple[tuple[str, str], ...]:
        """Return TGI's `x-` headers; times are whole milliseconds."""
        compute = ("x-compute-type", "cpu+optimized" if timings is None else timings.compute_type)
        characters = ("x-compute-characters", str(len(self.options.prompt)))
        if timings is None:
            return (compute, characters, ("x-accel-buffering", "no")) if self.options.stream else (compute, characters)
        return (compute, characters, *_timing_headers(timings, version=self.options.version))

    def stream(self) -> "TgiStream":
        return TgiStream(self.options)

    def render(self, answers: Sequence[Answer]) -> bytes:
        (answer,) = answers
        best, *others = answer.best_first()
        body: dict[str, object] = {"generated_text": self.options.prefix + best.text}
        if self.options.details:
            body["details"] = details = self._sequence(best, answer.prompt)
            if others:
                details["best_of_sequences"] = [
                    {"generated_text": self.options.prefix + other.text, **self._sequence(other, answer.prompt)}
                    for other in others
                ]
            if self.options.top_tokens:
                details["top_tokens"] = details.pop("top_tokens")  # the last one in TGI, too
        return to_json([body] if self.options.in_array else body)

    def _sequence(self, choice: FinishedChoice, prompt: tuple[Token, ...] | None) -> dict[str, object]:
        sequence: dict[str, object] = {
            "finish_reason": choice.finish.reason.value,
            "generated_tokens": choice.finish.output_tokens,
            "seed": choice.finish.seed,
            "prefill": [
                {"id": token.id, "text": token.text, "logprob": finite_logprob(token.logprob)} for token in prompt or ()
            ],
            "tokens": [_token(token) for token in choice.tokens],
        }
        if self.options.top_tokens:
            sequence["top_tokens"] = [[_token(top) for top in token.top] for token in choice.tokens]
        return sequence


class TgiStream(ClosingStream):
    """Renders one event per token; the last one has `generated_text` and `details`."""

    keep_alive = framing.SSE_KEEP_ALIVE

    def __init__(self, options: TgiOptions) -> None:
        super().__init__()
        self._options = options
        self._texts: list[str] = []
        self._num_events = 0

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        del request
        self._texts.append(chunk.text)
        if chunk.finish is None:
            return [self._event(token, b"null", b"null") for token in chunk.tokens]
        *before, last = chunk.tokens or (_NO_TOKEN,)
        events = [self._event(token, b"null", b"null") for token in before]
        self._is_closed = True
        text = to_json(self._options.prefix + "".join(self._texts))
        return [*events, self._event(last, text, self._details(chunk.finish))]

    def _error(self, error: errors.HeadraceError) -> Sequence[bytes]:
        return [sse_event(error_body(error), space=self._options.version != "1.0")]

    def _event(self, token: Token, generated_text: bytes, details: bytes) -> bytes:
        self._num_events += 1
        start = b"data:{" if self._options.version == "1.0" else b'data: {"index":%d,' % self._num_events
        top = b""
        if self._options.top_tokens and token.top:
            top = b'"top_tokens":[%b],' % b",".join(_token_json(item) for item in token.top)
        return b'%b"token":%b,%b"generated_text":%b,"details":%b}\n\n' % (
            start,
            _token_json(token),
            top,
            generated_text,
            details,
        )

    def _details(self, finish: Finish) -> bytes:
        if not self._options.details:
            return b"null"
        details: dict[str, object] = {
            "finish_reason": finish.reason.value,
            "generated_tokens": finish.output_tokens,
            "seed": finish.seed,
        }
        if self._options.version != "1.0":
            details["input_length"] = finish.prompt_tokens
        return to_json(details)


def _token(token: Token | TokenLogprob) -> dict[str, object]:
    logprob = finite_logprob(token.logprob)
    return {"id": token.id, "text": token.text, "logprob": logprob, "special": token.special}


def _token_json(token: Token | TokenLogprob) -> bytes:
    """Render `_token` as bytes, without msgspec: this runs for every token of every stream."""
    return b'{"id":%d,"text":%b,"logprob":%b,"special":%b}' % (
        token.id,
        to_json(token.text),
        json_number(finite_logprob(token.logprob)),
        _FLAGS[token.special],
    )


def _timing_headers(timings: Timings, *, version: Version) -> Iterable[tuple[str, str]]:
    per_token_s = timings.inference_s / max(1, timings.output_tokens)
    times_s = {
        "x-compute-time": timings.total_s,
        "x-total-time": timings.total_s,
        "x-validation-time": timings.validation_s,
        "x-queue-time": timings.queue_s,
        "x-inference-time": timings.inference_s,
        "x-time-per-token": per_token_s,
    }
    for name, time_s in times_s.items():
        yield name, str(int(time_s * 1000))
    if version != "1.0":
        yield "x-prompt-tokens", str(timings.prompt_tokens)
        yield "x-generated-tokens", str(timings.output_tokens)


_DTYPES = {"bf16": "torch.bfloat16"}


def render_unhealthy(reason: str) -> bytes:
    """Render `/health` while the server is not ready, in TGI's format."""
    return to_json({"error": f"unhealthy: {reason}", "error_type": "healthcheck"})


class TokenizeBody(msgspec.Struct):
    """The body of `/tokenize`; `parameters` are accepted without effect."""

    inputs: str


_tokenize_decoder = msgspec.json.Decoder(TokenizeBody)


def parse_tokenize(body: bytes) -> str:
    """Return the text to tokenize. Raises `InvalidRequest`: the body is not a JSON object with a string `inputs`."""
    return decode_body(body, _tokenize_decoder).inputs


def render_tokenize(spans: Iterable[TextSpan]) -> bytes:
    return to_json(_spans(spans))


def render_chat_tokenize(text: str, spans: Iterable[TextSpan]) -> bytes:
    """Render the body of `/chat_tokenize`: the tokens and the text after the chat template."""
    return to_json({"tokenize_response": _spans(spans), "templated_text": text})


def render_info(
    model: ModelInfo,
    *,
    version: Version,
    limits: RequestLimits,
    kv_cache_tokens: int,
    num_state_slots: int,
    max_concurrent_requests: int,
    server_version: str,
) -> bytes:
    common: dict[str, object] = {
        "max_concurrent_requests": max_concurrent_requests,
        "max_best_of": limits.max_best_of,
        "max_stop_sequences": limits.max_stop_sequences,
    }
    pipeline = "text2text-generation" if model.is_encoder_decoder else "text-generation"
    about_model = {"model_id": model.name, "model_sha": model.revision}
    facts = _own_facts(model) | {"kv_cache_tokens": kv_cache_tokens, "num_state_slots": num_state_slots}
    about_server = {"version": server_version, "sha": None, "docker_label": None, "headrace": facts}
    if version == "3":
        return to_json(
            {
                **about_model,
                "model_pipeline_tag": pipeline,
                **common,
                "max_input_tokens": model.max_prompt_tokens,
                "max_total_tokens": model.max_model_len,
                "validation_workers": 1,
                "max_client_batch_size": MAX_CHOICES,
                "router": "headrace",
                **about_server,
            }
        )
    return to_json(
        {
            **about_model,
            "model_dtype": _DTYPES.get(model.dtype, model.dtype),
            "model_device_type": model.device.split()[0],
            "model_pipeline_tag": pipeline,
            **common,
            "max_input_length": model.max_prompt_tokens,
            "max_total_tokens": model.max_model_len,
            "waiting_served_ratio": 1.2,
            "max_batch_total_tokens": kv_cache_tokens,
            "max_waiting_tokens": 20,
            "validation_workers": 1,
            **about_server,
        }
    )


def _own_facts(model: ModelInfo) -> dict[str, object]:
    """Return the fields that TGI's `/info` does not have; the chat page reads its defaults from them."""
    return {
        "backend": model.backend,
        "backend_reason": model.backend_reason,
        "is_batch_invariant": model.is_batch_invariant,
        "dtype": model.dtype,
        "kv_dtype": model.kv_dtype,
        "format_reason": model.format_reason,
        "rope": model.rope,
        "has_chat_template": model.has_chat_template,
        "sampling_defaults": {**model.sampling_defaults.values(), "source": model.sampling_defaults.source},
        "recommended_sampling": asdict(model.recommended),
    }


def _spans(spans: Iterable[TextSpan]) -> list[dict[str, object]]:
    return [{"id": span.id, "text": span.text, "start": span.start, "stop": span.stop} for span in spans]
