"""The registry of families, and the choice of the one that reads a checkpoint."""

from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.models.families.family import Family, GgufHeader
from headrace.models.families.gemma import GEMMA3
from headrace.models.families.llama import LLAMA
from headrace.models.families.mistral import MISTRAL
from headrace.models.families.mixtral import MIXTRAL
from headrace.models.families.qwen import QWEN2, QWEN3
from headrace.models.families.qwen_moe import QWEN2_MOE, QWEN3_MOE
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

FAMILIES: Final = (LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, GEMMA3)


def from_config(config: Fields) -> tuple[Family, ModelSpec]:
    """
    Return the family and the spec of a config.json.

    Raises:
        UnsupportedModel: a part is not supported; the message names it.
        BrokenModel: a key is missing or wrong; the message names it.
    """
    model_type = config.text("model_type", "")
    for family in FAMILIES:
        if model_type in family.model_types:
            return family, family.spec_from_config(config)
    known = ", ".join(name for family in FAMILIES for name in family.model_types)
    raise UnsupportedModel(
        f"{config.source}: model_type is {model_type!r}; expected one of {known}.", model_type=model_type
    )


def from_gguf(architecture: str, header: GgufHeader) -> tuple[Family, ModelSpec]:
    """Return the family and the spec of GGUF metadata; raises like `from_config`."""
    for family in FAMILIES:
        if architecture in family.gguf_architectures and family.spec_from_gguf is not None:
            return family, family.spec_from_gguf(header)
    known = ", ".join(name for family in FAMILIES for name in family.gguf_architectures)
    raise UnsupportedModel(
        f"{header.fields.source}: the architecture is {architecture!r}; expected one of {known}.",
        architecture=architecture,
    )
