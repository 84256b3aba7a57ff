"""
The object `options` of a request, and the sampling parameters that follow from it.

Options that a request leaves out have the model's recommended values, like the parameters of a Modelfile in Ollama.
Source: Ollama `docs/modelfile.md`; `api/types.go` (Options, Runner).
"""

from collections.abc import Mapping

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Grammar, SamplingParams
from headrace.core.sampling_defaults import RecommendedSampling
from headrace.serving.wire.dialect import RequestContext
from headrace.serving.wire.fields import (
    LARGEST_SEED,
    FieldTable,
    Refused,
    clamp_count,
    effective_temperature,
    struct_fields,
)
from headrace.serving.wire.openai.parameters import check_range, read_stop

_DEFAULT_REPEAT_LAST_N = 64
"""Source: Ollama `docs/modelfile.md`; some clients send all defaults."""


class Options(msgspec.Struct, kw_only=True):
    """The options that are applied; null is the same as an absent one."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


_REFUSED: Mapping[str, Refused] = {
    "mirostat": Refused("Mirostat sampling is not available", "Use 'temperature' and 'top_p'.", neutral=0),
    "tfs_z": Refused("tail-free sampling is not available", "Use 'top_p' or 'min_p'.", neutral=1),
    "penalize_newline": Refused("penalties apply to all tokens alike", neutral=True),
}
_NO_EFFECT = frozenset(
    (
        # belong to refused options
        *("mirostat_eta", "mirostat_tau"),
        # size and speed of the model, which the server's settings determine
        *("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_ctx", "num_gpu"),
        *("num_keep", "num_thread", "numa", "use_mlock", "use_mmap", "vocab_only"),
    )
)
FIELDS = FieldTable(applied=struct_fields(Options), refused=_REFUSED, no_effect=_NO_EFFECT)


def sampling_params(options: Options, context: RequestContext, grammar: Grammar | None) -> SamplingParams:
    """Check the options and convert them. Raises `InvalidRequest`: a value is out of range."""
    _check_ranges(options)
    default = context.model.recommended
    temperature = default.temperature if options.temperature is None else options.temperature
    top_p = default.top_p if options.top_p is None else options.top_p
    is_unlimited = options.num_predict is None or options.num_predict <= 0
    is_random = options.seed is None or options.seed < 0
    return SamplingParams(
        max_new_tokens=None if is_unlimited else options.num_predict,
        temperature=effective_temperature(temperature) if top_p > 0.0 else 0.0,
        top_k=clamp_count(max(0, default.top_k if options.top_k is None else options.top_k)),
        top_p=top_p if top_p > 0.0 else 1.0,
        min_p=default.min_p if options.min_p is None else options.min_p,
        typical_p=1.0 if options.typical_p is None else options.typical_p,
        repetition_penalty=_repetition_penalty(options, default),
        presence_penalty=options.presence_penalty or 0.0,
        frequency_penalty=options.frequency_penalty or 0.0,
        seed=None if is_random or options.seed is None else options.seed & LARGEST_SEED,
        stop=read_stop(options.stop, context, param="options.stop"),
        grammar=grammar,
    )


def _repetition_penalty(options: Options, default: RecommendedSampling) -> float:
    """Return the penalty, which covers the whole context; Ollama's default window of 64 tokens counts as unset."""
    penalty = default.repetition_penalty if options.repeat_penalty is None else options.repeat_penalty
    if options.repeat_last_n == 0:
        return 1.0
    if penalty != 1.0 and options.repeat_last_n not in {None, -1, _DEFAULT_REPEAT_LAST_N}:
        text = (
            f"'options.repeat_last_n' is {options.repeat_last_n}; expected 0 (no penalty), -1 or 64: 'repeat_penalty' "
            "covers the prompt and the whole answer. Leave it out."
        )
        raise InvalidRequest(text, param="options.repeat_last_n")
    return penalty


def parameters_of(recommended: RecommendedSampling) -> str:
    """Return the defaults as lines of a Modelfile without the word PARAMETER, as `/api/show` has them."""
    values = {
        "temperature": recommended.temperature,
        "top_p": recommended.top_p,
        "top_k": recommended.top_k,
        "min_p": recommended.min_p,
        "repeat_penalty": recommended.repetition_penalty,
    }
    return "\n".join(f"{name:<30} {value:g}" for name, value in values.items())


def _check_ranges(options: Options) -> None:
    check_range("options.temperature", options.temperature, low=0, high=2)
    check_range("options.top_p", options.top_p, low=0, high=1)
    check_range("options.top_k", options.top_k, low=-1)
    check_range("options.min_p", options.min_p, low=0, high=1)
    check_range("options.typical_p", options.typical_p, above=0, high=1)
    check_range("options.repeat_penalty", options.repeat_penalty, above=0)
    check_range("options.presence_penalty", options.presence_penalty, low=-2, high=2)
    check_range("options.frequency_penalty", options.frequency_penalty, low=-2, high=2)
