"""
The `adapter_config.json` of a PEFT LoRA folder: ranks and scales of its matrices, and refusals of what is not LoRA.

Source: PEFT `tuners/lora/config.py`, `tuners/lora/layer.py` (scales), `utils/other.py` (`get_pattern_key`).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.models.fields import Fields

_NEUTRAL_INITS: Final = (True, False, "gaussian", "eva", "orthogonal")
"""Initialisations that leave the base model as it is; pissa, olora, loftq and corda change it."""
_CONVERT: Final = "save it with PEFT's path_initial_model_for_weight_conversion"
_PLAIN_KEY: Final = re.compile(r"[\w.\-]+", re.ASCII)
_QUANTIFIED_GROUP: Final = re.compile(r"\)[*+?{]")
_UNBOUNDED: Final = re.compile(r"[*+]|(?<![(*+}])\?|\{\d*,\d*\}")
_MAX_PATTERN_CHARACTERS: Final = 500
_MAX_UNBOUNDED: Final = 3
"""Unbounded quantifiers of a pattern. More, or a repeated group, could match for hours: patterns come from the file."""
_MAX_PATTERNS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """The values of a PEFT config that decide the size and the scale of each matrix."""

    source: str
    rank: int
    alpha: float
    divides_by_root: bool
    """The scale is alpha / sqrt(rank) (rsLoRA) instead of alpha / rank."""
    rank_pattern: Mapping[str, float]
    alpha_pattern: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        """Return the rank of a module, by its name without the prefixes of PEFT."""
        return int(_matched(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """Return the factor of a module's product."""
        rank, alpha = self.rank_of(module), _matched(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.divides_by_root else rank)


def read_peft_config(config: Fields) -> PeftConfig:
    """
    Read a config and refuse what Headrace does not apply.

    Raises:
        BrokenModel: A value is missing or malformed; the message names it.
        UnsupportedModel: The adapter is not plain LoRA; the message names the part.
    """
    kind = config.text("peft_type")
    if kind != "LORA":
        raise UnsupportedModel(f"{config.source}: peft_type is {kind!r:.100}; expected LORA.", peft_type=kind)
    config.refuse("use_dora", "DoRA", unless=(False,))
    config.refuse("bias", "training of biases", unless=("none",))
    config.refuse("lora_bias", "a bias in LoRA's matrices", unless=(False,))
    config.refuse("modules_to_save", "replacing whole modules", unless=([],))
    config.refuse("trainable_token_indices", "replacing the embeddings of tokens", unless=([], {}))
    config.refuse("target_parameters", "adapting stacked experts", unless=([],))
    config.refuse("layer_replication", "replicating layers", unless=([],))
    config.refuse("use_qalora", "QA-LoRA", unless=(False,))
    config.refuse("alora_invocation_tokens", "activating an adapter in the middle of a prompt (aLoRA)", unless=([],))
    init = config.values.get("init_lora_weights", True)
    if init is not None and not any(init is value or init == value for value in _NEUTRAL_INITS):
        raise UnsupportedModel(
            f"{config.source}: init_lora_weights is {init!r:.100}, which changes the base model; {_CONVERT}.",
            init_lora_weights=init,
        )
    return PeftConfig(
        source=config.source,
        rank=config.whole("r"),
        alpha=config.number("lora_alpha"),
        divides_by_root=config.flag("use_rslora", default=False),
        rank_pattern=_patterns(config, "rank_pattern"),
        alpha_pattern=_patterns(config, "alpha_pattern"),
    )


def _patterns(config: Fields, key: str) -> dict[str, float]:
    values = config.sub(key)
    if len(values.values) > _MAX_PATTERNS:
        raise BrokenModel(f"{config.source}: {key} has {len(values.values)} entries; expected at most {_MAX_PATTERNS}.")
    patterns = {}
    for pattern in values.values:
        _check_pattern(f"{config.source}, {key}", pattern)
        patterns[pattern] = float(values.whole(pattern)) if key == "rank_pattern" else values.number(pattern)
    return patterns


def _check_pattern(source: str, pattern: str) -> None:
    if _PLAIN_KEY.fullmatch(pattern):
        return
    if (
        len(pattern) > _MAX_PATTERN_CHARACTERS
        or _QUANTIFIED_GROUP.search(pattern)
        or len(_UNBOUNDED.findall(pattern)) > _MAX_UNBOUNDED
    ):
        raise UnsupportedModel(
            f"{source}: the pattern {pattern!r:.200} is not supported; expected at most {_MAX_PATTERN_CHARACTERS} "
            f"characters, {_MAX_UNBOUNDED} of *, + and ?, and no repeated group."
        )
    try:
        re.compile(pattern)
    except re.error as exc:
        raise BrokenModel(f"{source}: {pattern!r:.200} is not a regular expression: {exc}.") from exc


def _matched(patterns: Mapping[str, float], module: str, default: float) -> float:
    """Return the value of the first pattern that matches the end of a module's name."""
    return next((value for pattern, value in patterns.items() if _ends_with(module, pattern)), default)


def _ends_with(module: str, pattern: str) -> bool:
    if _PLAIN_KEY.fullmatch(pattern):
        return module == pattern or module.endswith(f".{pattern}")
    return re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module) is not None
