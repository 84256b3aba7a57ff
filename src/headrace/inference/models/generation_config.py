"""
Defaults that a checkpoint's files name: sampling values and ids of special tokens.

Writers mark "off" in many ways (`top_k: -1`, `max_new_tokens: 0`, `eos_token_id: -1`), and a default is never a reason
to refuse a model: what is unusable does not count, and the log says so. Libraries differ in the meaning of `do_sample`;
here, as in vLLM, it is not read.

Where a checkpoint's files name no sampling, its model card does: GGUF files seldom carry the `generation_config.json`
of their origin, and SmolLM2 has none with sampling values.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from headrace.core.errors import BrokenModel
from headrace.core.sampling_defaults import SMALL_MODEL_REPETITION_PENALTY, SamplingDefaults
from headrace.core.telemetry import get_logger
from headrace.inference.models.fields import Fields

_MAX_ID: Final = 2**31 - 1
"""Runners hold token ids in 32 bits."""
_Range = tuple[str, Callable[[float], bool]]
_RANGES: Final[dict[str, _Range]] = {
    "temperature": ("a number from 0 up", lambda value: value >= 0),
    "top_p": ("a number above 0, at most 1", lambda value: 0 < value <= 1),
    "min_p": ("a number from 0 to 1", lambda value: 0 <= value <= 1),
    "repetition_penalty": ("a number above 0", lambda value: value > 0),
    "top_k": ("a whole number, of which 0 and -1 mean all tokens", lambda value: value >= 0 and value == int(value)),
    "max_new_tokens": ("a whole number from 1 up", lambda value: value >= 1 and value == int(value)),
}
_OFF: Final = {"top_k": (-1,)}
"""Values that mean 0: every token is a candidate."""
_WHOLE: Final = ("top_k", "max_new_tokens")


def read_sampling(fields: Fields, source: str) -> SamplingDefaults:
    values = {name: value for name in _RANGES if (value := _value(fields, name)) is not None}
    whole = {name: int(values.pop(name)) for name in _WHOLE if name in values}
    return SamplingDefaults(**values, **whole, source=source)  # type: ignore[arg-type]  # by name, checked above


def token_ids(fields: Fields, key: str) -> frozenset[int]:
    """Return the token ids of a key, given as a number or a list of numbers, without those that no token can have."""
    value = fields.values.get(key)
    given = value if isinstance(value, list) else [] if value is None else [value]
    ids = [_token_id(item) for item in given]
    if None in ids:
        _tell(fields, key, "token ids from 0 up")
    return frozenset(index for index in ids if index is not None)


def _value(fields: Fields, name: str) -> float | None:
    if not fields.has(name):
        return None
    expected, is_usable = _RANGES[name]
    try:
        value = fields.number(name)
    except BrokenModel:
        value = None
    if value in _OFF.get(name, ()):
        return 0
    if value is None or not is_usable(value):
        _tell(fields, name, expected)
        return None
    return value


def _token_id(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_ID:
        return None
    return value


def _tell(fields: Fields, name: str, expected: str) -> None:
    message = f"{fields.source}: {name} is {fields.values[name]!r:.200} and does not count; expected {expected}."
    get_logger().warning("model.default_ignored", message=message)


_SIZE: Final = r"[0-9.]+[bm](-a[0-9.]+b)?"
_SMOLLM2_FINETUNE: Final = r"(instruct|8k-lc100k-mix1-ep2)"
"""The second is what the converter made of the name of the Instruct model's training run."""

_CARDS: Final[Mapping[str, SamplingDefaults]] = {
    # https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct; the penalty is our own: benchmarks/first_answer
    rf"(huggingfacetb/)?smollm2-(135|360)m-{_SMOLLM2_FINETUNE}": SamplingDefaults(
        temperature=0.2,
        top_p=0.9,
        repetition_penalty=SMALL_MODEL_REPETITION_PENALTY,
        source="SmolLM2's model card, with a penalty for its size",
    ),
    rf"(huggingfacetb/)?smollm2-1\.7b-{_SMOLLM2_FINETUNE}": SamplingDefaults(
        temperature=0.2, top_p=0.9, source="SmolLM2's model card"
    ),
    # https://huggingface.co/HuggingFaceTB/SmolLM3-3B
    "smollm3-3b": SamplingDefaults(temperature=0.6, top_p=0.95, source="SmolLM3's model card"),
    # generation_config.json of https://huggingface.co/google/gemma-3-270m and its larger siblings, base and tuned
    rf"gemma-?3-{_SIZE}(-.*)?": SamplingDefaults(
        temperature=1.0, top_p=0.95, top_k=64, source="Gemma 3's generation_config.json"
    ),
    # https://huggingface.co/Qwen/Qwen3-0.6B, "Best Practices": with thinking, the default of its chat template
    rf"qwen3-{_SIZE}(-thinking)?": SamplingDefaults(
        temperature=0.6, top_p=0.95, top_k=20, min_p=0.0, source="Qwen3's model card"
    ),
    # https://huggingface.co/Qwen/Qwen3-4B-Instruct-2507, "Best Practices"
    rf"qwen3-{_SIZE}-instruct(-.*)?": SamplingDefaults(
        temperature=0.7, top_p=0.8, top_k=20, min_p=0.0, source="Qwen3's model card"
    ),
    # generation_config.json of https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct, Llama 3, 3.2 and 3.3
    rf"(meta-)?llama-3(\.[123])?-{_SIZE}-instruct": SamplingDefaults(
        temperature=0.6, top_p=0.9, source="Llama 3's generation_config.json"
    ),
}
"""Sampling by model card, with patterns of a Hub id, or of `basename-size-finetune` of a GGUF file, in lower case."""


def recommended_by_card(name: str) -> SamplingDefaults:
    """Return the recommendations for a Hub id or for the name of a GGUF file (`gguf_card_name`); empty if unknown."""
    found = (sampling for pattern, sampling in _CARDS.items() if re.fullmatch(pattern, name.lower()))
    return next(found, SamplingDefaults())


def gguf_card_name(metadata: Mapping[str, object]) -> str:
    """Return `basename-size-finetune` by the metadata of a GGUF file; parts that it lacks are left out."""
    parts = (metadata.get(f"general.{key}") for key in ("basename", "size_label", "finetune"))
    return "-".join(part for part in parts if isinstance(part, str) and part)
