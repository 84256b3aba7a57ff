"""Read a whole checkpoint from a GGUF file, or from the parts of one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.core.generation import PoolingMethod
from headrace.models.fields import Fields
from headrace.models.generation_config import gguf_card_name, read_sampling
from headrace.models.gguf_file import open_all_parts
from headrace.models.gguf_reader import GgufWeights, read_gguf_spec
from headrace.models.gguf_tokenizer import read_gguf_tokenizer
from headrace.models.model import Checkpoint, CheckpointText, GenerationDefaults
from headrace.models.pooling import Pooler

_TEMPLATE: Final = "tokenizer.chat_template"
_SAMPLING: Final = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Keys below `general.sampling`."""
_POOLING: Final[Mapping[int, PoolingMethod | None]] = {0: None, 1: "mean", 2: "cls", 3: "last"}
"""Values of `pooling_type`; 4 is a reranker."""


def read_gguf_checkpoint(path: Path) -> Checkpoint:
    """
    Read everything but the weights.

    Raises:
        BrokenModel: the file or a part of it is missing, truncated or malformed; the message says where.
        UnsupportedModel: a part is not supported; the message names it.
    """
    file = open_all_parts(path)
    family, spec = read_gguf_spec(file)
    tokenizer = read_gguf_tokenizer(file, spec.vocab_size)
    templates = {
        key.removeprefix(_TEMPLATE).removeprefix(".") or "default": value
        for key, value in file.metadata.items()
        if key.startswith(_TEMPLATE) and isinstance(value, str)
    }
    return Checkpoint(
        spec=spec,
        weights=GgufWeights(file, family, spec),
        text=CheckpointText(
            tokenizer=tokenizer,
            templates=templates,
            defaults=_read_defaults(file.metadata, tokenizer.eos_token_ids),
            card_name=gguf_card_name(file.metadata),
        ),
        pooler=_read_pooler(Fields(file.metadata, str(path))),
        generates=spec.is_causal,
    )


def _read_pooler(metadata: Fields) -> Pooler | None:
    """Return the pooling of an embedding model; None if the file names none."""
    key = f"{metadata.text('general.architecture')}.pooling_type"
    kind = metadata.whole(key, 0, minimum=0)
    if kind not in _POOLING:
        raise UnsupportedModel(
            f"{metadata.source}: {key} is {kind}; expected 0 to 3. Rerankers load from Hugging Face folders.", key=key
        )
    method = _POOLING[kind]
    return None if method is None else Pooler(method=method)


def _read_defaults(metadata: Mapping[str, object], eos_token_ids: frozenset[int]) -> GenerationDefaults:
    """Return the recommended sampling, which llama.cpp's converter copies from `generation_config.json`."""
    values = {name: metadata.get(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
    source = "the GGUF file's metadata"
    return GenerationDefaults(eos_token_ids=eos_token_ids, sampling=read_sampling(Fields(values, source), source))
