"""The content of a checkpoint, independent of its file format."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.models.model import GenerationDefaults
from headrace.models.pooling import Pooler
from headrace.models.spec import ModelSpec
from headrace.models.tokenizer import Tokenizer
from headrace.models.weights import WeightSource

SMOOTHED_KEY: Final = "headrace_smoothed"
"""The flag in the `config.json` of a smoothed folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointText:
    """The parts of a checkpoint that turn text into tokens and back, and its sampling defaults."""

    tokenizer: Tokenizer
    templates: Mapping[str, str]
    """Chat templates by name; empty if the checkpoint has none."""
    defaults: GenerationDefaults
    card_name: str = ""
    """The name in a GGUF file by which its model card is known; empty for folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything read from a checkpoint but its weights, which are mapped."""

    spec: ModelSpec
    weights: WeightSource
    text: CheckpointText
    pooler: Pooler | None = None
    """The pooling that its files describe; None: they describe none."""
    generates: bool = True
    """False without an LM head."""
    is_smoothed: bool = False
    """True if the inputs of its matrices were rescaled (SmoothQuant): adapters of the original do not fit."""
