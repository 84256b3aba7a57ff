"""
The TGI dialects: `tgi-1.0` (as 1.0.3) and `tgi-3` (as 3.x), each for three kinds of route.

Error texts are TGI's, which clients match. Source: TGI v1.0.3 and main, `router/src/lib.rs` (GenerateParameters) and
`router/src/validation.rs`.
"""

from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import GenerationRequest, RequestLimits, SamplingParams
from headrace.serving.wire import fields
from headrace.serving.wire.constraints import TextParameters, read_constraint
from headrace.serving.wire.dialect import ParsedRequest, RequestContext
from headrace.serving.wire.framing import decode_body, refusing_deep_nesting
from headrace.serving.wire.tgi.reply import TgiOptions, TgiReply, Version, render_error

DEFAULT_MAX_NEW_TOKENS: dict[Version, int | None] = {"1.0": 20, "3": None}
"""Default of 1.0.3; in 3.x it is the rest of the context."""


class GenerateParameters(TextParameters):
    """The field `parameters` of a body of TGI."""

    stop: list[str] | None = None
    adapter_id: str | None = None


class GenerateBody(msgspec.Struct):
    """The body of `/`, `/generate`, `/generate_stream` and `/invocations`."""

    inputs: str
    parameters: GenerateParameters | None = None
    stream: bool | None = None


BODY_FIELDS = fields.body_table(GenerateBody)
PARAMETER_FIELDS = fields.field_table("tgi", GenerateParameters)


def sampling_params(
    parameters: GenerateParameters, *, version: Version, stream: bool, limits: RequestLimits, max_input_tokens: int
) -> SamplingParams:
    """
    Check the parameters in TGI's order and convert them.

    Raises:
        InvalidRequest: with TGI's text, without its prefix `Input validation error: `.
    """
    best_of = _best_of(parameters, stream=stream, limits=limits)
    _check_ranges(parameters)
    _check_counts(parameters, limits=limits, max_input_tokens=max_input_tokens)
    wants_tokens = stream or bool(parameters.details or parameters.decoder_input_details) or best_of > 1
    top_n = parameters.top_n_tokens or 0
    try:
        grammar = read_constraint(parameters, prefix="parameters.")
    except InvalidRequest as error:
        raise _wrong(error.param or "parameters.grammar", f"grammar is not valid: {error.message}") from error
    max_new_tokens, temperature, samples = parameters.max_new_tokens, parameters.temperature, is_sampling(parameters)
    return SamplingParams(
        max_new_tokens=DEFAULT_MAX_NEW_TOKENS[version] if max_new_tokens is None else max_new_tokens,
        temperature=fields.effective_temperature(1.0 if temperature is None else temperature) if samples else 0.0,
        top_k=fields.clamp_count(parameters.top_k or 0),
        top_p=1.0 if parameters.top_p is None else parameters.top_p,
        typical_p=1.0 if parameters.typical_p is None else parameters.typical_p,
        repetition_penalty=1.0 if parameters.repetition_penalty is None else parameters.repetition_penalty,
        frequency_penalty=parameters.frequency_penalty or 0.0,
        seed=parameters.seed,
        stop=tuple(parameters.stop or ()),
        include_stop=True,
        n=best_of,
        logprobs=top_n if wants_tokens else None,
        prompt_logprobs=0 if parameters.decoder_input_details else None,
        grammar=grammar,
    )


def is_sampling(parameters: GenerateParameters) -> bool:
    """Return whether tokens are sampled: `do_sample`, or a sampling parameter. Source: TGI `NextTokenChooser`."""
    return bool(
        parameters.do_sample
        or parameters.temperature not in {None, 1.0}
        or parameters.top_k
        or parameters.top_p is not None
        or parameters.typical_p is not None
    )


def _best_of(parameters: GenerateParameters, *, stream: bool, limits: RequestLimits) -> int:
    best_of = 1 if parameters.best_of is None else parameters.best_of
    if stream and best_of != 1:
        raise _wrong("best_of", "`best_of` != 1 is not supported when streaming tokens")
    if stream and parameters.decoder_input_details:
        text = "`decoder_input_details` == true is not supported when streaming tokens"
        raise _wrong("decoder_input_details", text)
    if limits.max_best_of == 1 and best_of != 1:
        raise _wrong("best_of", "`best_of` != 1 is not allowed for this endpoint")
    if not 1 <= best_of <= limits.max_best_of:
        raise _wrong("best_of", f"`best_of` must be > 0 and <= {limits.max_best_of}. Given: {best_of}")
    samples = is_sampling(parameters) or parameters.temperature is not None
    if best_of > 1 and not samples:
        raise _wrong("best_of", "you must use sampling when `best_of` is > 1")
    if best_of > 1 and parameters.seed is not None:
        raise _wrong("seed", "`seed` must not be set when `best_of` > 1")
    return best_of


def _check_ranges(parameters: GenerateParameters) -> None:
    for name in ("temperature", "repetition_penalty", "top_k"):
        value = getattr(parameters, name)
        if value is not None and value <= 0:
            raise _wrong(name, f"`{name}` must be strictly positive")
    if parameters.frequency_penalty is not None and not -2.0 <= parameters.frequency_penalty <= 2.0:
        raise _wrong("frequency_penalty", "`frequency_penalty` must be >= -2.0 and <= 2.0")
    for name in ("top_p", "typical_p"):
        value = getattr(parameters, name)
        if value is not None and not 0.0 < value < 1.0:
            raise _wrong(name, f"`{name}` must be > 0.0 and < 1.0")


def _check_counts(parameters: GenerateParameters, *, limits: RequestLimits, max_input_tokens: int) -> None:
    if parameters.max_new_tokens is not None and parameters.max_new_tokens <= 0:
        raise _wrong("max_new_tokens", "`max_new_tokens` must be strictly positive")
    num_stops = len(parameters.stop or ())
    if num_stops > limits.max_stop_sequences:
        text = f"`stop` supports up to {limits.max_stop_sequences} stop sequences. Given: {num_stops}"
        raise _wrong("stop", text)
    if "" in (parameters.stop or ()):
        raise _wrong("stop", "`stop` must not contain an empty string")
    if parameters.seed is not None and not 0 <= parameters.seed <= fields.LARGEST_SEED:
        raise _wrong("seed", f"`seed` must be >= 0 and <= {fields.LARGEST_SEED}. Given: {parameters.seed}")
    top_n = parameters.top_n_tokens
    if top_n is not None and not 0 <= top_n <= limits.max_top_n_tokens:
        text = f"`top_n_tokens` must be >= 0 and <= {limits.max_top_n_tokens}. Given: {top_n}"
        raise _wrong("top_n_tokens", text)
    truncate = parameters.truncate
    if truncate is not None and not 0 < truncate <= max_input_tokens:
        text = f"`truncate` must be strictly positive and less than {max_input_tokens}. Given: {truncate}"
        raise _wrong("truncate", text)


def _wrong(param: str, text: str) -> InvalidRequest:
    return InvalidRequest(text, param=param)


Route = Literal["compat", "generate", "generate_stream"]

_decoder = msgspec.json.Decoder(GenerateBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tgi:
    """
    A version of TGI on one kind of route.

    `compat` is `/` and `/invocations`: `stream` in the body selects events or an array of one object, and the prompt
    precedes the text unless `return_full_text` is false (as in TGI for models of the text-generation task).
    `generate` returns the object and `generate_stream` events, regardless of the body.
    """

    version: Version = "3"
    route: Route = "compat"

    @property
    def name(self) -> str:
        return f"tgi-{self.version}"

    def on(self, route: Route) -> "Tgi":
        return replace(self, route=route)

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        decoded = decode_body(body, _decoder, only_integers=True)
        ignored = fields.check_nested(body, BODY_FIELDS, PARAMETER_FIELDS)
        parameters = decoded.parameters or GenerateParameters()
        stream = self.route == "generate_stream" or (self.route == "compat" and bool(decoded.stream))
        sampling = sampling_params(
            parameters,
            version=self.version,
            stream=stream,
            limits=context.limits,
            max_input_tokens=context.model.max_prompt_tokens,
        )
        if not decoded.inputs:
            raise InvalidRequest("`inputs` cannot be empty", param="inputs")
        request = GenerationRequest(
            request_id=context.request_id,
            prompt=decoded.inputs,
            sampling=sampling,
            truncate_prompt_tokens=parameters.truncate,
            adapter=parameters.adapter_id or None,
        )
        reply = TgiReply(self.options(decoded.inputs, parameters, stream=stream))
        return ParsedRequest(requests=(request,), stream=stream, reply=reply, ignored=ignored)

    render_error = staticmethod(render_error)

    def options(self, inputs: str, parameters: GenerateParameters, *, stream: bool) -> TgiOptions:
        full_text = parameters.return_full_text
        return TgiOptions(
            version=self.version,
            stream=stream,
            in_array=self.route == "compat",
            details=bool(parameters.details or (parameters.decoder_input_details and not stream)),
            top_tokens=bool(parameters.top_n_tokens),
            prompt=inputs,
            return_full_text=self.route == "compat" if full_text is None else full_text,
        )
