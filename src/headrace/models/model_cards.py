"""
Sampling that model cards recommend, for checkpoints whose own files name none.

GGUF files seldom carry the `generation_config.json` of their origin, and SmolLM2 has none with sampling values.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.core.sampling_defaults import SMALL_MODEL_REPETITION_PENALTY, SamplingDefaults


@dataclass(frozen=True, slots=True)
class _ModelCard:
    pattern: str
    """Matches a Hub id, or `basename-size-finetune` of a GGUF file, in lower case."""
    sampling: SamplingDefaults


_SIZE: Final = r"[0-9.]+[bm](-a[0-9.]+b)?"
_SMOLLM2_FINETUNE: Final = r"(instruct|8k-lc100k-mix1-ep2)"
"""The second is what the converter made of the name of the Instruct model's training run."""

_CARDS: Final = (
    # https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct; the penalty is our own: benchmarks/first_answer
    _ModelCard(
        rf"(huggingfacetb/)?smollm2-(135|360)m-{_SMOLLM2_FINETUNE}",
        SamplingDefaults(
            temperature=0.2,
            top_p=0.9,
            repetition_penalty=SMALL_MODEL_REPETITION_PENALTY,
            source="SmolLM2's model card, with a penalty for its size",
        ),
    ),
    _ModelCard(
        rf"(huggingfacetb/)?smollm2-1\.7b-{_SMOLLM2_FINETUNE}",
        SamplingDefaults(temperature=0.2, top_p=0.9, source="SmolLM2's model card"),
    ),
    # https://huggingface.co/HuggingFaceTB/SmolLM3-3B
    _ModelCard("smollm3-3b", SamplingDefaults(temperature=0.6, top_p=0.95, source="SmolLM3's model card")),
    # generation_config.json of https://huggingface.co/google/gemma-3-270m and its larger siblings, base and tuned
    _ModelCard(
        rf"gemma-?3-{_SIZE}(-.*)?",
        SamplingDefaults(temperature=1.0, top_p=0.95, top_k=64, source="Gemma 3's generation_config.json"),
    ),
    # https://huggingface.co/Qwen/Qwen3-0.6B, "Best Practices": with thinking, the default of its chat template
    _ModelCard(
        rf"qwen3-{_SIZE}(-thinking)?",
        SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20, min_p=0.0, source="Qwen3's model card"),
    ),
    # https://huggingface.co/Qwen/Qwen3-4B-Instruct-2507, "Best Practices"
    _ModelCard(
        rf"qwen3-{_SIZE}-instruct(-.*)?",
        SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, min_p=0.0, source="Qwen3's model card"),
    ),
    # generation_config.json of https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct, Llama 3, 3.2 and 3.3
    _ModelCard(
        rf"(meta-)?llama-3(\.[123])?-{_SIZE}-instruct",
        SamplingDefaults(temperature=0.6, top_p=0.9, source="Llama 3's generation_config.json"),
    ),
)


def recommended_by_card(name: str) -> SamplingDefaults:
    """Return the recommendations for a Hub id or for the name of a GGUF file (`gguf_card_name`); empty if unknown."""
    found = (card.sampling for card in _CARDS if re.fullmatch(card.pattern, name.lower()))
    return next(found, SamplingDefaults())


def gguf_card_name(metadata: Mapping[str, object]) -> str:
    """Return `basename-size-finetune` by the metadata of a GGUF file; parts that it lacks are left out."""
    parts = (metadata.get(f"general.{key}") for key in ("basename", "size_label", "finetune"))
    return "-".join(part for part in parts if isinstance(part, str) and part)
