"""Read a whole checkpoint from a Hugging Face folder: config.json, weights, tokenizer, chat template."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from headrace.core.client_text import reason_of
from headrace.core.errors import BrokenModel
from headrace.core.sampling_defaults import SamplingDefaults
from headrace.inference.models.families.family import Family
from headrace.inference.models.families.mistral_params import config_of_params
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields, json_fields, read_whole
from headrace.inference.models.generation_config import read_sampling
from headrace.inference.models.hf_tokenizer import read_hf_tokenizer
from headrace.inference.models.hf_vocabulary import token_text
from headrace.inference.models.model import SMOOTHED_KEY, Checkpoint, CheckpointText, GenerationDefaults
from headrace.inference.models.safetensors_reader import SafetensorsWeights
from headrace.inference.models.sentence_transformers import has_lm_head, read_pooler
from headrace.inference.models.snapshots import PARAMS
from headrace.inference.models.spec import ModelSpec
from headrace_handler.stray_files import listed

GENERATION_CONFIG: Final = "generation_config.json"
_HUB_SNAPSHOTS: Final = "snapshots"
_HUB_BLOBS: Final = "blobs"
"""A folder of the Hub's cache is `snapshots/REVISION`, with links into `blobs` beside `snapshots`."""
_ESCAPED_SURROGATE: Final = "\\ud"
_OLDER_QUANTIZATION: Final = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""The files of AutoGPTQ and AutoAWQ from before `quantization_config`, with the method that they mean."""


def read_hf_checkpoint(folder: Path) -> Checkpoint:
    """
    Read everything but the weights.

    Raises:
        BrokenModel: a file is missing, truncated or malformed; the message names it.
        UnsupportedModel: a part is not supported; the message names it.
    """
    config = read_config(folder)
    family, spec = _spec(config)
    weights = SafetensorsWeights(folder, family, spec, config.sub("quantization_config"))
    return Checkpoint(
        spec=spec,
        weights=weights,
        text=read_text_parts(folder, config, vocab_size=spec.vocab_size),
        pooler=read_pooler(folder, config),
        generates=spec.is_causal and has_lm_head(config),
        is_smoothed=config.flag(SMOOTHED_KEY, default=False),
    )


def read_text_parts(folder: Path, config: Fields, *, vocab_size: int) -> CheckpointText:
    """Read the tokenizer, the chat templates and `generation_config.json`; raises as `read_hf_checkpoint`."""
    generation = _read_json(folder / GENERATION_CONFIG)
    settings = _read_settings(folder)
    tokenizer = read_hf_tokenizer(
        folder, settings=settings, config=config, generation=generation, vocab_size=vocab_size
    )
    return CheckpointText(
        tokenizer=tokenizer,
        templates=read_templates(folder, settings),
        defaults=GenerationDefaults(
            eos_token_ids=tokenizer.eos_token_ids,
            sampling=read_sampling(generation, GENERATION_CONFIG),
        ),
    )


def read_generation_config(folder: Path) -> SamplingDefaults:
    """Read the sampling of a folder's `generation_config.json`; raises `BrokenModel` if it is missing or malformed."""
    path = folder / GENERATION_CONFIG
    return read_sampling(_read_json(path, required=True), str(path))


def read_hf_weights(folder: Path) -> SafetensorsWeights:
    """Open the weights alone; raises as `read_hf_checkpoint`."""
    config = read_config(folder)
    family, spec = _spec(config)
    return SafetensorsWeights(folder, family, spec, config.sub("quantization_config"))


def _spec(config: Fields) -> tuple[Family, ModelSpec]:
    """Return the family and the spec; a checkpoint without an LM head counts as tied, so that none is read."""
    family, spec = from_config(config)
    return family, spec if has_lm_head(config) else replace(spec, tie_embeddings=True)


def read_templates(folder: Path, settings: Fields) -> dict[str, str]:
    """Return the chat templates by name: template files win over those in JSON files, as in transformers."""
    single, older_file = folder / "chat_template.jinja", folder / "chat_template.json"
    processor = folder / "processor_config.json"
    named = listed(folder / "additional_chat_templates", ["*.jinja"])
    _refuse_links(folder, [single, older_file, processor, *named])
    files = {path.stem: _read_text(path) for path in named}
    if single.is_file():
        return files | {"default": _read_text(single)}
    return _older_templates(_read_json(older_file), settings, _read_json(processor)) | files


def _older_templates(*sources: Fields) -> dict[str, str]:
    """Return the templates of the first file that has any under the key `chat_template`."""
    value = next(filter(None, (source.values.get("chat_template") for source in sources)), None)
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else []
    return {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
    }


def _refuse_links(folder: Path, paths: Iterable[Path]) -> None:
    """Refuse links out of a folder, but for those of the Hub's cache: clients may see the text of a template."""
    at = folder.absolute()
    places = [at, at.parents[1] / _HUB_BLOBS] if at.parent.name == _HUB_SNAPSHOTS else [at]
    inside = tuple(place.resolve() for place in places)
    for path in paths:
        target = path.resolve()
        if not any(target.is_relative_to(place) for place in inside):
            raise BrokenModel(
                f"{path} links to {target}; expected a file of the model. To use that template, pass --chat-template.",
                path=str(path),
            )


def _read_settings(folder: Path) -> Fields:
    """Return `tokenizer_config.json`, with what older writers kept in files of their own: added and special tokens."""
    settings = _read_json(folder / "tokenizer_config.json")
    added = _read_json(folder / "added_tokens.json")
    names = _read_json(folder / "special_tokens_map.json")
    # Special tokens are texts, objects with `content`, or lists of these.
    values = chain.from_iterable(value if isinstance(value, list) else [value] for value in names.values.values())
    special = {token_text(value) for value in values}
    decoder = {str(index): {"content": token, "special": token in special} for token, index in added.values.items()}
    return settings.with_defaults({**names.values, "added_tokens_decoder": decoder})


def read_config(folder: Path) -> Fields:
    """
    Return `config.json`, with the `quantization_config` that older writers of GPTQ and AWQ kept in another file.

    Mistral's own folders have a `params.json` instead.
    """
    params = folder / PARAMS
    if params.is_file() and not (folder / "config.json").is_file():
        return config_of_params(_read_json(params))
    config = _read_json(folder / "config.json", required=True)
    if config.has("quantization_config"):
        return config
    for name, method in _OLDER_QUANTIZATION.items():
        older = _read_json(folder / name)
        if older.values:
            quantization = {"quant_method": method, **older.values}
            return Fields({**config.values, "quantization_config": quantization}, config.source)
    return config


def _read_json(path: Path, *, required: bool = False) -> Fields:
    if not required and not path.is_file():
        return Fields({}, str(path))
    text = _read_text(path)
    fields = json_fields(text, str(path))
    if _ESCAPED_SURROGATE in text.lower():
        try:
            json.dumps(fields.values, ensure_ascii=False).encode()
        except ValueError as exc:  # half of a pair is no character: `tokenizers` fails on it
            raise BrokenModel(f"{path} is not valid JSON: {exc}.", path=str(path)) from exc
    return fields


def _read_text(path: Path) -> str:
    try:
        return read_whole(path).decode()
    except (OSError, UnicodeDecodeError) as exc:
        raise BrokenModel(f"{path} cannot be read: {reason_of(exc)}.", path=str(path)) from exc
