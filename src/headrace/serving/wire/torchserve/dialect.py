"""
The TorchServe dialect of the published text generation handlers: a prompt in, words out, and TorchServe's errors.

Published readers take every chunk for a line and drop its last byte, so each chunk ends in a separator, and the last
one in a newline. A word is sent when the next one begins, as in transformers' `TextIteratorStreamer` before 5.24.
A full queue is 429, not TorchServe's 503, because clients retry it.

Source: pytorch/serve `examples/large_models` (the handlers read `data` or `body` as text, and stream by
`send_intermediate_predict_response`), `ts/handler_utils/hf_batch_streamer.py` (which returns the prompt first),
`NettyUtils.sendError` and the exceptions in `frontend/server/src/main/java/org/pytorch/serve/http/`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.core import errors
from headrace.core.generation import Chunk, GenerationRequest, SamplingParams
from headrace.serving.wire import fields
from headrace.serving.wire.answers import Answer
from headrace.serving.wire.constraints import ConstraintFields, read_constraint
from headrace.serving.wire.dialect import (
    ClosingStream,
    ErrorReply,
    JsonHead,
    ParsedRequest,
    RequestContext,
    StreamRenderer,
    retry_headers,
)
from headrace.serving.wire.framing import MalformedBody, decode_body, field_names, refusing_deep_nesting, to_json

_EXCEPTIONS: dict[type[errors.HeadraceError], str] = {
    errors.Busy: "ServiceUnavailableException",
    errors.Unavailable: "ServiceUnavailableException",
    errors.NotFound: "ResourceNotFoundException",
    errors.ModelNotFound: "ModelNotFoundException",
    errors.PayloadTooLarge: "RequestEntityTooLargeException",
    errors.Unauthorized: "InvalidKeyException",
}


def error_body(error: errors.HeadraceError) -> bytes:
    """Render the JSON object for an error, in a body or a stream."""
    by_default = "BadRequestException" if isinstance(error, errors.InvalidRequest) else "InternalServerException"
    kind = _EXCEPTIONS.get(type(error), by_default)
    return to_json({"code": error.http_status, "type": kind, "message": error.message})


def render_error(error: errors.HeadraceError) -> ErrorReply:
    return ErrorReply(status=error.http_status, body=error_body(error), headers=retry_headers(error))


_SEPARATORS = " \n\t"
_ENOUGH_CHARACTERS = 32
"""Length of text that is sent without a separator, in scripts that have none."""
_NO_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
    "\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"  # Chinese, Japanese, full-width forms
)
"""A character of a script that is written without spaces."""


@dataclass(frozen=True, slots=True)
class WordReply(JsonHead):
    """Renders one answer as plain text."""

    prefix: str
    """The prompt, which precedes the generated text, or nothing."""

    content_type = "text/plain; charset=utf-8"

    def stream(self) -> StreamRenderer:
        return WordStream(self.prefix)

    def render(self, answers: Sequence[Answer]) -> bytes:
        (answer,) = answers
        return _ended(self.prefix + answer.choices[0].text).encode()


class WordStream(ClosingStream):
    """Renders whole words, each with the separator after it."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._held = [prefix]
        self._is_first = True
        self._ends_in_newline = False

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        """Render the words that are complete; at the end the rest of the text and a newline."""
        del request
        self._held.append(chunk.text)
        if chunk.finish is not None:
            self._is_closed = True
            return self._rest()
        newest = "".join(self._held) if self._is_first else chunk.text
        self._is_first = False
        if not any(mark in newest for mark in _SEPARATORS):
            is_enough = newest and _NO_SPACES.match(newest[-1])
            if not is_enough or sum(map(len, self._held)) < _ENOUGH_CHARACTERS:
                return ()
        return self._words("".join(self._held))

    def _error(self, error: errors.HeadraceError) -> Sequence[bytes]:
        """Render the text held back, and TorchServe's error object on a separate line."""
        return [*self._rest(), error_body(error) + b"\n"]

    def _words(self, text: str) -> Sequence[bytes]:
        """Return the text up to its last separator; the rest is held back."""
        after = max(map(text.rfind, _SEPARATORS)) + 1
        if not after and _NO_SPACES.match(text[-1]):
            after = len(text)
        self._held = [text[after:]]
        self._ends_in_newline = text[:after].endswith("\n")
        return [text[:after].encode()]

    def _rest(self) -> Sequence[bytes]:
        text = "".join(self._held)
        self._held = []
        if not text and self._ends_in_newline:
            return ()
        return [_ended(text).encode()]


def _ended(text: str) -> str:
    """Add a final newline: line readers never finish on a stream without one."""
    return text if text.endswith("\n") else text + "\n"


class TorchServeParameters(ConstraintFields):
    """The field `parameters` of a JSON body, which handlers pass to `generate`."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    return_full_text: bool | None = None
    """True (or null) if the prompt precedes its continuation."""


class TorchServeBody(msgspec.Struct):
    """A body that is a JSON object with `inputs` and parameters."""

    inputs: str
    parameters: TorchServeParameters | None = None
    stream: bool | None = None
    """Accepted without effect: the answer is always streamed word by word."""


BODY_FIELDS = fields.body_table(TorchServeBody)
PARAMETER_FIELDS = fields.field_table("torchserve", TorchServeParameters)
_decoder = msgspec.json.Decoder(TorchServeBody)
_text_decoder = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchServe:
    """
    The TorchServe dialect: plain text in, plain text out.

    NOTE: clients send text with `Content-Type: application/json`, so the content type is not used. A body that is a
    JSON string is that string (TorchServe decodes it), a JSON object with `inputs` is parsed, and any other body is the
    prompt itself, stripped of surrounding white space.
    """

    name = "torchserve"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        ignored: tuple[str, ...] = ()
        parameters = TorchServeParameters()
        if "inputs" in field_names(body):
            decoded = decode_body(body, _decoder)
            prompt, parameters = decoded.inputs, decoded.parameters or parameters
            ignored = fields.check_nested(body, BODY_FIELDS, PARAMETER_FIELDS)
        else:
            prompt = _text(body)
        if not prompt.strip():
            raise errors.InvalidRequest("The prompt is empty: send it as the body, as plain text.", param="inputs")
        request = GenerationRequest(
            request_id=context.request_id,
            prompt=prompt,
            sampling=_sampling(parameters, default_max_new_tokens=context.default_max_new_tokens),
        )
        prefix = "" if parameters.return_full_text is False else prompt
        return ParsedRequest(requests=(request,), stream=True, reply=WordReply(prefix), ignored=ignored)

    render_error = staticmethod(render_error)


def _text(body: bytes) -> str:
    if body.lstrip().startswith(b'"'):
        try:
            return _text_decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # a prompt that begins with a quote
    try:
        return body.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise MalformedBody("The body is not text in UTF-8.") from None


def _sampling(parameters: TorchServeParameters, *, default_max_new_tokens: int) -> SamplingParams:
    """Convert the parameters as `generate` of transformers does: no sampling without `do_sample`."""
    max_new_tokens, temperature = parameters.max_new_tokens, fields.first_given(parameters.temperature, None, 1.0)
    return SamplingParams(
        max_new_tokens=default_max_new_tokens if max_new_tokens is None else max_new_tokens,
        min_new_tokens=parameters.min_new_tokens or 0,
        temperature=fields.effective_temperature(temperature) if parameters.do_sample else 0.0,
        top_k=fields.clamp_count(max(0, parameters.top_k or 0)),
        top_p=1.0 if parameters.top_p is None else parameters.top_p,
        repetition_penalty=1.0 if parameters.repetition_penalty is None else parameters.repetition_penalty,
        seed=None if parameters.seed is None else parameters.seed & fields.LARGEST_SEED,
        stop=tuple(parameters.stop or ()),
        grammar=read_constraint(parameters, prefix="parameters."),
    )
