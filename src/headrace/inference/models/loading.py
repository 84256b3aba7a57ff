"""Find a model by name and read everything but its weights, which are memory-mapped."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.core.errors import SettingsError, UnsupportedModel
from headrace.core.progress import Progress, no_progress
from headrace.core.sampling_defaults import SamplingDefaults
from headrace.inference.models.chat import ChatTemplate, override_template
from headrace.inference.models.chat_builtins import LLAMA2
from headrace.inference.models.generation_config import recommended_by_card
from headrace.inference.models.gguf_reader import read_gguf_checkpoint
from headrace.inference.models.hf_checkpoint import (
    GENERATION_CONFIG,
    read_config,
    read_generation_config,
    read_hf_checkpoint,
    read_text_parts,
)
from headrace.inference.models.model import CheckpointText, HfModel, Model
from headrace.inference.models.rope_override import override_rope
from headrace.inference.models.sources import Located, home_folder, locate
from headrace.inference.models.tokenizer import ByteForm

LLAMA2_VOCAB_SIZES = range(32000, 32065)
"""Llama 2 and its fine-tunes that added a few tokens."""

AUTO: Final = "auto"
"""Sampling defaults of the checkpoint's own files, else of its model card."""
NEUTRAL: Final = "vllm"
"""No sampling defaults, as with vLLM's `--generation-config vllm`."""

_POSITION_KEYS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len")
"""Keys of config.json for the longest context, most common first."""


def load_model(
    ref: str | Located,
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    chat_template: str | None = None,
    rope: Mapping[str, object] | None = None,
    generation_config: str = AUTO,
    progress: Progress = no_progress,
) -> Model:
    """
    Find a model, download it if need be, and read it.

    Args:
        ref: an alias (`smollm2`), a Hub id, a folder, or a `.gguf` file; or the location that was found for it.
        revision: branch, tag or commit of a Hub id.
        cache_dir: the folder of downloads; by default `$HEADRACE_HOME` or `~/.cache/headrace`.
        chat_template: replaces the model's own: a built-in name, a path, or Jinja source.
        rope: `rope_parameters` to merge into the checkpoint's (see `rope_override`).
        generation_config: the source of sampling defaults: `auto`, `vllm` (none) or a folder.
        progress: called as downloads proceed.

    Raises:
        ModelNotFound: there is no such model, or it cannot be fetched; the message says how to fix it.
        UnsupportedModel: a part is not supported; the message names it.
        BrokenModel: a file is missing, truncated or malformed; the message names it.
        SettingsError: `chat_template`, `rope` or `generation_config` is invalid.
    """
    home = cache_dir if cache_dir is not None else home_folder(os.environ)
    located = locate(ref, revision=revision, home=home, progress=progress)
    read = read_hf_checkpoint if located.path.is_dir() else read_gguf_checkpoint
    checkpoint = read(located.path)
    return Model(
        name=located.name,
        path=located.path,
        revision=revision,
        spec=checkpoint.spec if rope is None else override_rope(checkpoint.spec, rope),
        weights=checkpoint.weights,
        tokenizer=checkpoint.text.tokenizer,
        chat_template=_chat_template(checkpoint.text, checkpoint.spec.family, chat_template),
        defaults=replace(
            checkpoint.text.defaults, sampling=_sampling_defaults(checkpoint.text, located.name, generation_config)
        ),
        pooler=checkpoint.pooler,
        generates=checkpoint.generates,
        is_smoothed=checkpoint.is_smoothed,
    )


def load_hf_model(
    ref: str | Located,
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    chat_template: str | None = None,
    generation_config: str = AUTO,
    progress: Progress = no_progress,
) -> HfModel:
    """
    Find a model whose network another library builds, and read its config, tokenizer and chat template.

    Arguments and errors are those of `load_model`; a GGUF file is refused.
    """
    home = cache_dir if cache_dir is not None else home_folder(os.environ)
    located = locate(ref, revision=revision, home=home, progress=progress)
    if located.path.is_file():
        raise UnsupportedModel(
            f"{located.path} is a GGUF file, which only the native backend reads. Serve it with --backend native."
        )
    config = read_config(located.path)
    sizes = config.sub("text_config") if config.has("text_config") else config
    vocab_size = sizes.whole("vocab_size")
    text = read_text_parts(located.path, config, vocab_size=vocab_size)
    positions = [sizes.whole(key) for key in _POSITION_KEYS if sizes.has(key)]
    return HfModel(
        name=located.name,
        path=located.path,
        revision=revision,
        config=config.values,
        vocab_size=vocab_size,
        max_positions=positions[0] if positions else None,
        tokenizer=text.tokenizer,
        chat_template=_chat_template(text, config.text("model_type", ""), chat_template),
        defaults=replace(text.defaults, sampling=_sampling_defaults(text, located.name, generation_config)),
    )


def _sampling_defaults(text: CheckpointText, name: str, generation_config: str) -> SamplingDefaults:
    if generation_config == NEUTRAL:
        return SamplingDefaults()
    if generation_config != AUTO:
        folder = Path(generation_config).expanduser()
        if not (folder / GENERATION_CONFIG).is_file():
            raise SettingsError(
                f"generation_config is {str(folder)!r}; expected {AUTO}, {NEUTRAL} or a folder with a "
                f"{GENERATION_CONFIG}.",
                name="generation_config",
            )
        return read_generation_config(folder)
    if text.defaults.sampling.values():
        return text.defaults.sampling
    return recommended_by_card(text.card_name or name)


def _chat_template(text: CheckpointText, family: str, override: str | None) -> ChatTemplate | None:
    special_names = text.tokenizer.special_names
    if override is not None:
        return override_template(override, special_names)
    if text.templates:
        return ChatTemplate(text.templates, special_names=special_names)
    tokenizer = text.tokenizer
    is_sentencepiece = tokenizer.form is ByteForm.SENTENCEPIECE
    if family == "llama" and tokenizer.vocab_size in LLAMA2_VOCAB_SIZES and is_sentencepiece:
        return ChatTemplate(LLAMA2, special_names=special_names, source="the built-in chat template llama2")
    return None
