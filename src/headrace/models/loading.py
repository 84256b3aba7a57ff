"""Find a model by name and read everything but its weights, which are memory-mapped."""

import os
from collections.abc import Mapping
from pathlib import Path

from headrace.core.progress import Progress, no_progress
from headrace.models.chat import ChatTemplate, override_template
from headrace.models.chat_builtins import LLAMA2
from headrace.models.checkpoint import Checkpoint
from headrace.models.gguf_checkpoint import read_gguf_checkpoint
from headrace.models.hf_checkpoint import read_hf_checkpoint
from headrace.models.model import Model
from headrace.models.rope_override import override_rope
from headrace.models.sources import home_folder, locate
from headrace.models.tokenizer import ByteForm

LLAMA2_VOCAB_SIZES = range(32000, 32065)
"""Llama 2 and its fine-tunes that added a few tokens."""


def load_model(
    ref: str,
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    chat_template: str | None = None,
    rope: Mapping[str, object] | None = None,
    progress: Progress = no_progress,
) -> Model:
    """
    Find a model, download it if need be, and read it.

    Args:
        ref: an alias (`smollm2`), a Hub id, a folder, or a `.gguf` file.
        revision: branch, tag or commit of a Hub id.
        cache_dir: the folder of downloads; by default `$HEADRACE_HOME` or `~/.cache/headrace`.
        chat_template: replaces the model's own: a built-in name, a path, or Jinja source.
        rope: `rope_parameters` to merge into the checkpoint's (see `rope_override`).
        progress: called as downloads proceed.

    Raises:
        ModelNotFound: there is no such model, or it cannot be fetched; the message says how to fix it.
        UnsupportedModel: a part is not supported; the message names it.
        BrokenModel: a file is missing, truncated or malformed; the message names it.
        SettingsError: `chat_template` or `rope` is invalid.
    """
    home = cache_dir if cache_dir is not None else home_folder(os.environ)
    located = locate(ref, revision=revision, home=home, progress=progress)
    checkpoint = _read(located.path)
    return Model(
        name=located.name,
        path=located.path,
        revision=revision,
        spec=checkpoint.spec if rope is None else override_rope(checkpoint.spec, rope),
        weights=checkpoint.weights,
        tokenizer=checkpoint.tokenizer,
        chat_template=_chat_template(checkpoint, chat_template),
        defaults=checkpoint.defaults,
        pooler=checkpoint.pooler,
        generates=checkpoint.generates,
        is_smoothed=checkpoint.is_smoothed,
    )


def _read(path: Path) -> Checkpoint:
    return read_hf_checkpoint(path) if path.is_dir() else read_gguf_checkpoint(path)


def _chat_template(checkpoint: Checkpoint, override: str | None) -> ChatTemplate | None:
    special_names = checkpoint.tokenizer.special_names
    if override is not None:
        return override_template(override, special_names)
    if checkpoint.templates:
        return ChatTemplate(checkpoint.templates, special_names=special_names)
    if _looks_like_llama2(checkpoint):
        return ChatTemplate(LLAMA2, special_names=special_names, source="the built-in chat template llama2")
    return None


def _looks_like_llama2(checkpoint: Checkpoint) -> bool:
    return (
        checkpoint.spec.family == "llama"
        and checkpoint.spec.vocab_size in LLAMA2_VOCAB_SIZES
        and checkpoint.tokenizer.form is ByteForm.SENTENCEPIECE
    )
