"""
TGI's request body and its checks, with TGI's error texts, which clients match.

Source: TGI v1.0.3 and main, `router/src/lib.rs` (GenerateParameters) and `router/src/validation.rs`.
"""

from typing import Literal

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Grammar, RequestLimits, SamplingParams
from headrace.wire.constraints import ConstraintFields, read_constraint
from headrace.wire.fields import MISPLACED_CONSTRAINTS, SAMPLING_REFUSED, FieldTable, Refused, struct_fields
from headrace.wire.sampling import LARGEST_SEED, clamp_count, effective_temperature

Version = Literal["1.0", "3"]

DEFAULT_MAX_NEW_TOKENS: dict[Version, int | None] = {"1.0": 20, "3": None}
"""Default of 1.0.3; in 3.x it is the rest of the context."""


class GenerateParameters(ConstraintFields):
    """The field `parameters`; null is the same as an absent field."""

    best_of: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool | None = None
    max_new_tokens: int | None = None
    return_full_text: bool | None = None
    stop: list[str] | None = None
    truncate: int | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: int | None = None
    top_n_tokens: int | None = None
    adapter_id: str | None = None


class GenerateBody(msgspec.Struct):
    """The body of `/`, `/generate`, `/generate_stream` and `/invocations`."""

    inputs: str
    parameters: GenerateParameters | None = None
    stream: bool | None = None


BODY_FIELDS = FieldTable(applied=struct_fields(GenerateBody), refused=MISPLACED_CONSTRAINTS)
PARAMETER_FIELDS = FieldTable(
    applied=struct_fields(GenerateParameters),
    refused={**SAMPLING_REFUSED, "watermark": Refused("watermarking is not supported")},
)


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
    max_new_tokens = parameters.max_new_tokens
    return SamplingParams(
        max_new_tokens=DEFAULT_MAX_NEW_TOKENS[version] if max_new_tokens is None else max_new_tokens,
        temperature=_temperature(parameters),
        top_k=clamp_count(parameters.top_k or 0),
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
        grammar=_grammar(parameters),
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


def _temperature(parameters: GenerateParameters) -> float:
    if not is_sampling(parameters):
        return 0.0
    return effective_temperature(1.0 if parameters.temperature is None else parameters.temperature)


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
    if parameters.seed is not None and not 0 <= parameters.seed <= LARGEST_SEED:
        raise _wrong("seed", f"`seed` must be >= 0 and <= {LARGEST_SEED}. Given: {parameters.seed}")
    top_n = parameters.top_n_tokens
    if top_n is not None and not 0 <= top_n <= limits.max_top_n_tokens:
        text = f"`top_n_tokens` must be >= 0 and <= {limits.max_top_n_tokens}. Given: {top_n}"
        raise _wrong("top_n_tokens", text)
    truncate = parameters.truncate
    if truncate is not None and not 0 < truncate <= max_input_tokens:
        text = f"`truncate` must be strictly positive and less than {max_input_tokens}. Given: {truncate}"
        raise _wrong("truncate", text)


def _grammar(parameters: GenerateParameters) -> Grammar | None:
    try:
        return read_constraint(parameters, prefix="parameters.")
    except InvalidRequest as error:
        raise _wrong(error.param or "parameters.grammar", f"grammar is not valid: {error.message}") from error


def _wrong(param: str, text: str) -> InvalidRequest:
    return InvalidRequest(text, param=param)
