"""
The files of a Hugging Face folder besides its weights: config, tokenizer, chat template, generation defaults.

A folder is built under a temporary name beside its target, and renamed when it is complete.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.core.errors import BrokenModel, SettingsError
from headrace.models.config_export import config_from_spec
from headrace.models.families.registry import NESTED, text_part
from headrace.models.fields import Fields
from headrace.models.model import Model
from headrace_handler.stray_files import is_stray, listed

_COPIED: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.tiktoken",
    "tekken.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates",
    "LICENSE*",
    "NOTICE*",
)
"""Files that are copied unchanged from the folder of a model."""
_PLAIN_NAME: Final = re.compile(r"[\w.-]{1,100}")
_TEXT_ARCHITECTURES: Final = {
    "gemma3_text": "Gemma3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
}
"""Text parts that transformers loads alone; those of Qwen VL have no class of their own, but are Qwen 2 and 3."""


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """
    Yield an empty folder that becomes `target` when the block succeeds and is deleted when it fails.

    Raises:
        SettingsError: `target` exists and is not an empty folder.
    """
    check_is_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        yield building
        building.chmod(0o755)
        building.replace(target)
    except BaseException as error:
        shutil.rmtree(building, ignore_errors=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk names no file
            error.filename = str(target)
        raise


def check_is_free(target: Path) -> None:
    """Refuse a target that exists, unless it is an empty folder."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise SettingsError(f"{target} already exists. Name a folder that is new or empty.", path=str(target))


def export_files(model: Model, folder: Path, changes: Mapping[str, object]) -> None:
    """
    Write everything but the weights; `changes` override values of `config.json`.

    Raises:
        UnsupportedModel: the network cannot be described by a `config.json`.
        BrokenModel: a chat template has a name that a file cannot have.
    """
    if model.path.is_dir():
        config = _text_config(model)
        _copy_files(model.path, folder)
    else:
        config = config_from_spec(model.spec) | _token_ids(model)
        _write_tokenizer(model, folder)
    _write_json(folder / "config.json", {**{key: value for key, value in config.items() if key != "dtype"}, **changes})


def _text_config(model: Model) -> dict[str, object]:
    """Return the config of a folder; of a vision-language model that of the text part, which alone is written."""
    file = model.path / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    if config.get("model_type") not in NESTED:
        return dict(config)
    part = text_part(Fields(config, str(file)))
    architecture = _TEXT_ARCHITECTURES.get(part.text("model_type"))
    if architecture is None:
        return config_from_spec(model.spec) | _token_ids(model)
    return {**part.values, "architectures": [architecture]}


def _copy_files(source: Path, folder: Path) -> None:
    for path in listed(source, _COPIED):
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=lambda _, names: filter(is_stray, names))
        else:
            shutil.copyfile(path, folder / path.name)


def _write_tokenizer(model: Model, folder: Path) -> None:
    (folder / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", model.tokenizer.to_config(max_tokens=model.spec.max_positions))
    _write_json(folder / "generation_config.json", _token_ids(model))
    for name, text in (model.chat_template.templates if model.chat_template else {}).items():
        path = folder / "chat_template.jinja"
        if not _PLAIN_NAME.fullmatch(name):  # it comes from the file, and would name a file elsewhere
            raise BrokenModel(
                f"{model.path} has a chat template named {name!r:.100}; expected letters, digits, '.', '_' and '-'."
            )
        if name != "default":
            path = folder / "additional_chat_templates" / f"{name}.jinja"
            path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _token_ids(model: Model) -> dict[str, object]:
    ends = sorted(model.tokenizer.eos_token_ids)
    values = {
        "bos_token_id": model.tokenizer.bos_token_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
    }
    return {key: value for key, value in values.items() if value is not None}


def _write_json(path: Path, values: Mapping[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
