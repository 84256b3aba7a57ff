"""All families, and which of them a checkpoint belongs to."""

from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.models.families.family import Family, GgufHeader
from headrace.models.families.gemma import GEMMA3
from headrace.models.families.llama import LLAMA
from headrace.models.families.mistral import MISTRAL
from headrace.models.families.qwen import QWEN2, QWEN3
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

FAMILIES: Final = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3)


def from_config(config: Fields) -> tuple[Family, ModelSpec]:
    """
    The family and the spec of a config.json.

    Raises:
        UnsupportedModel: names the part that is not supported.
        BrokenModel: names the key that is missing or wrong.
    """
    model_type = config.text("model_type", "")
    for family in FAMILIES:
        if model_type in family.model_types:
            return family, family.spec_from_config(config)
    known = ", ".join(name for family in FAMILIES for name in family.model_types)
    raise UnsupportedModel(
        f"{config.source}: model_type {model_type!r} is not supported; these are: {known}.", model_type=model_type
    )


def from_gguf(architecture: str, header: GgufHeader) -> tuple[Family, ModelSpec]:
    """The same for GGUF metadata."""
    for family in FAMILIES:
        if architecture in family.gguf_architectures and family.spec_from_gguf is not None:
            return family, family.spec_from_gguf(header)
    known = ", ".join(name for family in FAMILIES for name in family.gguf_architectures)
    raise UnsupportedModel(
        f"{header.fields.source}: architecture {architecture!r} is not supported; these are: {known}.",
        architecture=architecture,
    )
