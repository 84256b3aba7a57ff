"""Read a whole checkpoint from a GGUF file, or from the parts of one."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.models.checkpoint import Checkpoint
from headrace.models.gguf_reader import GgufWeights, read_gguf_spec
from headrace.models.gguf_split import open_all_parts
from headrace.models.gguf_tokenizer import read_gguf_tokenizer
from headrace.models.model import GenerationDefaults

_TEMPLATE: Final = "tokenizer.chat_template"


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
        tokenizer=tokenizer,
        templates=templates,
        defaults=_read_defaults(file.metadata, tokenizer.eos_token_ids),
    )


def _read_defaults(metadata: Mapping[str, object], eos_token_ids: frozenset[int]) -> GenerationDefaults:
    """Return the recommended sampling, which llama.cpp's converter copies from `generation_config.json`."""

    def number(key: str) -> float | None:
        value = metadata.get(f"general.sampling.{key}")
        return float(value) if isinstance(value, int | float) and math.isfinite(value) and value >= 0 else None

    top_k = number("top_k")
    return GenerationDefaults(
        eos_token_ids=eos_token_ids,
        temperature=number("temp"),
        top_p=number("top_p"),
        top_k=None if top_k is None else int(top_k),
        repetition_penalty=number("penalty_repeat"),
    )
