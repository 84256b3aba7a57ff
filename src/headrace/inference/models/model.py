"""The content of a checkpoint, independent of its file format, and a model that was located and read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.core.sampling_defaults import SamplingDefaults
from headrace.inference.models.chat import ChatTemplate
from headrace.inference.models.pooling import Pooler
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.tokenizer import Tokenizer
from headrace.inference.models.weights import WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """The end tokens, and the sampling that the model's authors recommend."""

    eos_token_ids: frozenset[int] = frozenset()
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Located:
    """A model that was found, and the parts of it that every library needs."""

    name: str
    """The short name: alias, Hub id, name of the folder or file."""
    path: Path
    """The folder, or the `.gguf` file."""
    revision: str | None
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    defaults: GenerationDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(_Located):
    """Everything about one checkpoint. Weights are memory-mapped, not yet read."""

    spec: ModelSpec
    weights: WeightSource
    pooler: Pooler | None = None
    """See `Checkpoint`, also for what follows."""
    generates: bool = True
    is_smoothed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HfModel(_Located):
    """A Hugging Face folder whose network another library builds: its config and what turns text into tokens."""

    config: Mapping[str, object]
    """`config.json`."""
    vocab_size: int
    max_positions: int | None
    """The longest context in the config; None: it names none."""

    @property
    def architecture(self) -> str:
        """The class that transformers builds, such as `BloomForCausalLM`; empty if the config names none."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    @property
    def model_type(self) -> str:
        """The family in transformers' terms, such as `bloom`."""
        return str(self.config.get("model_type", ""))


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
