"""
Common fields of completions and chat completions: sampling parameters, their ranges, the model's name.

The names are OpenAI's, vLLM's, SGLang's and TGI's; `fields.txt` has those that are not applied.
Source: OpenAI API reference; vLLM `entrypoints/openai/*/protocol.py` (0.32); SGLang `entrypoints/openai/protocol.py`;
TGI `router/src/lib.rs` (ChatRequest).
"""

from dataclasses import replace
from typing import Literal, TypedDict

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest, ModelNotFound
from headrace.core.generation import RepetitionDetection, SamplingParams
from headrace.serving.wire.constraints import ConstraintFields, read_constraint
from headrace.serving.wire.dialect import RequestContext
from headrace.serving.wire.fields import (
    LARGEST_SEED,
    clamp_count,
    effective_temperature,
    first_given,
)
from headrace.serving.wire.framing import invalid

Texts = str | list[str] | list[str | int | list[int]]
Framing = Literal["sse", "jsonlines"]
"""LMI streams chat as jsonlines: the same objects, one per line, without `[DONE]`."""

_MAX_LOGIT_BIASES = 4096
"""Python checks each entry while all other streams stall: 300,000 entries took 0.7 s."""


class StreamOptions(msgspec.Struct):
    """The fields of a request's `stream_options`."""

    include_usage: bool | None = None


class RepetitionDetectionFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's `repetition_detection`; a `max_pattern_size` of 0 turns it off, a `min_pattern_size` of 0 means 1."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


class CommonFields(ConstraintFields, kw_only=True):
    """Fields of both bodies; null is the same as an absent field."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None
    user: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    repetition_detection: RepetitionDetectionFields | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    """SGLang's name for `include_stop_str_in_output`."""
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    """Logprobs name tokens `token_id:ID` instead of by their text."""
    truncate_prompt_tokens: int | None = None
    cache_salt: str | None = None


def model_named(name: str | None, context: RequestContext) -> tuple[RequestContext, str | None]:
    """
    Return the context with the model that answers, and the adapter if the request names one.

    Raises:
        ModelNotFound: the server accepts certain names only, and this is none of them.
    """
    if name in context.adapters:
        return replace(context, model=replace(context.model, name=name)), name
    accepted = context.accepted_models
    if name is None or accepted is None or name in accepted or name == context.model.name:
        return context, None
    served = ", ".join(f"`{served}`" for served in (context.model.name, *sorted(context.adapters)))
    raise ModelNotFound(f"The model `{shortened(name)}` does not exist. Served here: {served}.")


def is_stream(fields: CommonFields) -> bool:
    """Return whether the request asks for a stream. Raises `InvalidRequest`: `stream_options` without `stream`."""
    if fields.stream_options is not None and not fields.stream:
        text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise InvalidRequest(text, param="stream_options")
    return bool(fields.stream)


def sampling_params(fields: CommonFields, context: RequestContext, *, max_new_tokens: int | None) -> SamplingParams:
    """Check the common fields and convert them. Raises `InvalidRequest` with OpenAI's text: a value is out of range."""
    _check_ranges(fields, context)
    check_range("min_tokens", fields.min_tokens, low=0, high=max_new_tokens)
    defaults = context.model.sampling_defaults  # as vLLM's --generation-config; OpenAI's for the rest
    top_p = first_given(fields.top_p, defaults.top_p, 1.0)
    temperature = first_given(fields.temperature, defaults.temperature, 1.0)
    logit_bias, stop = _logit_bias(fields, context), read_stop(fields.stop, context)
    _check_ids("stop_token_ids", fields.stop_token_ids, context)
    repetition = None  # the engine checks its ranges; source: vLLM `sampling_params.py`
    if (rule := fields.repetition_detection) is not None and rule.max_pattern_size != 0:
        repetition = RepetitionDetection(
            max_pattern_size=rule.max_pattern_size,
            min_pattern_size=rule.min_pattern_size or 1,
            min_count=rule.min_count,
        )
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        default_max_new_tokens=defaults.max_new_tokens,
        min_new_tokens=fields.min_tokens or 0,
        temperature=effective_temperature(temperature) if top_p > 0.0 else 0.0,
        top_k=clamp_count(max(0, first_given(fields.top_k, defaults.top_k, 0))),
        top_p=top_p if top_p > 0.0 else 1.0,
        min_p=first_given(fields.min_p, defaults.min_p, 0.0),
        typical_p=1.0 if fields.typical_p is None else fields.typical_p,
        repetition_penalty=first_given(fields.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        logit_bias=logit_bias,
        allowed_token_ids=_allowed_token_ids(fields, context),
        bad_words=tuple(fields.bad_words or ()),
        seed=None if fields.seed is None else fields.seed & LARGEST_SEED,
        stop=stop,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        include_stop=bool(fields.include_stop_str_in_output or fields.no_stop_trim),
        ignore_eos=bool(fields.ignore_eos),
        skip_special_tokens=fields.skip_special_tokens is not False,
        prompt_logprobs=fields.prompt_logprobs,
        returns_prompt_ids=bool(fields.return_token_ids),
        n=1 if fields.n is None else fields.n,
        grammar=read_constraint(fields),
        repetition_detection=repetition,
    )


class TokenOptions(TypedDict):
    """The options of an answer that vLLM's fields about tokens give; see `envelope.EnvelopeOptions`."""

    returns_ids: bool
    names_ids: bool
    shows_prompt: bool


def token_options(fields: CommonFields) -> TokenOptions:
    return {
        "returns_ids": bool(fields.return_token_ids),
        "names_ids": bool(fields.return_tokens_as_token_ids),
        "shows_prompt": fields.prompt_logprobs is not None,
    }


def check_range(
    name: str, value: float | None, *, low: float | None = None, high: float | None = None, above: float | None = None
) -> None:
    """Check `low <= value <= high` and `value > above`; None passes. Raises `InvalidRequest` with OpenAI's text."""
    if value is None:
        return
    kind = "integer" if isinstance(value, int) else "decimal"
    expected = None
    if low is not None and value < low:
        expected = f"{kind} below minimum value. Expected a value >= {low:g}"
    elif above is not None and value <= above:
        expected = f"{kind} below minimum value. Expected a value > {above:g}"
    elif high is not None and value > high:
        expected = f"{kind} above maximum value. Expected a value <= {high:g}"
    if expected is not None:
        raise invalid(name, f"{expected}, but got {value} instead")


def _check_ranges(fields: CommonFields, context: RequestContext) -> None:
    check_range("temperature", fields.temperature, low=0, high=2)
    check_range("top_p", fields.top_p, low=0, high=1)
    check_range("n", fields.n, low=1, high=context.limits.max_best_of)
    check_range("presence_penalty", fields.presence_penalty, low=-2, high=2)
    check_range("frequency_penalty", fields.frequency_penalty, low=-2, high=2)
    check_range("top_k", fields.top_k, low=-1)
    check_range("min_p", fields.min_p, low=0, high=1)
    check_range("typical_p", fields.typical_p, above=0, high=1)
    check_range("repetition_penalty", fields.repetition_penalty, above=0)
    check_range("prompt_logprobs", fields.prompt_logprobs, low=0, high=context.limits.max_top_n_tokens)
    if fields.prompt_logprobs is not None and fields.stream:
        raise invalid("prompt_logprobs", "it cannot be combined with 'stream'")
    check_range("truncate_prompt_tokens", fields.truncate_prompt_tokens, low=1, high=context.model.max_prompt_tokens)


def _logit_bias(fields: CommonFields, context: RequestContext) -> dict[int, float]:
    count = len(fields.logit_bias or ())
    if count > _MAX_LOGIT_BIASES:
        raise invalid("logit_bias", f"expected at most {_MAX_LOGIT_BIASES} token ids, but got {count}")
    biases: dict[int, float] = {}
    for key, bias in (fields.logit_bias or {}).items():
        check_range(f"logit_bias.{key}", bias, low=-100, high=100)
        if not (key.isascii() and key.isdigit() and len(key) < 12 and int(key) < context.model.vocab_size):
            expected = f"Expected token ids from 0 to {context.model.vocab_size - 1} as keys"
            raise invalid("logit_bias", f"{expected}, but got '{key[:40]}'")
        biases[int(key)] = bias
    return biases


def _allowed_token_ids(fields: CommonFields, context: RequestContext) -> tuple[int, ...]:
    ids = fields.allowed_token_ids
    if ids is None:
        return ()
    if not 0 < len(ids) <= context.model.vocab_size:
        expected = f"expected 1 to {context.model.vocab_size} token ids, but got {len(ids)}"
        raise invalid("allowed_token_ids", expected)
    _check_ids("allowed_token_ids", ids, context)
    return tuple(ids)


def _check_ids(name: str, ids: list[int] | None, context: RequestContext) -> None:
    """Check that the model knows all token ids, of which there may be hundreds of thousands."""
    for token_id in (min(ids), max(ids)) if ids else ():
        check_range(name, token_id, low=0, high=context.model.vocab_size - 1)


def read_stop(stop: str | list[str] | None, context: RequestContext, *, param: str = "stop") -> tuple[str, ...]:
    """Return the stop sequences. Raises `InvalidRequest`: there are too many, or one is empty."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    most = context.limits.max_stop_sequences
    if len(stops) > most:
        raise invalid(param, f"Expected at most {most} stop sequences, but got {len(stops)}")
    if "" in stops:
        raise invalid(param, "a stop sequence must not be empty")
    return stops


def read_texts(
    name: str, value: Texts, context: RequestContext, *, no_text: str, no_ids: str, most: int | None = None
) -> list[str | tuple[int, ...]]:
    """
    Return the prompts or inputs of a text, a list of token ids, a list of texts or a list of lists of token ids.

    `no_text` and `no_ids` are the errors for an empty text or list; `most` is the longest list of texts.
    """

    def read(item: str | int | list[int]) -> str | tuple[int, ...]:
        if isinstance(item, int):
            raise invalid(name, "texts and token ids cannot be mixed in one array")
        if not item:
            raise invalid(name, no_text if isinstance(item, str) else no_ids)
        if isinstance(item, str):
            return item
        _check_ids(name, item, context)
        return tuple(item)

    if isinstance(value, str):
        return [read(value)]
    if not value:
        raise invalid(name, f"empty array. Expected at least one {name}")
    ids = [item for item in value if isinstance(item, int)]
    if len(ids) == len(value):
        return [read(ids)]
    if most is not None and len(value) > most:
        text = f"array too long. Expected an array with maximum length {most}, but got an array with length"
        raise invalid(name, f"{text} {len(value)} instead")
    return [read(item) for item in value]
