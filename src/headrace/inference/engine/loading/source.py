"""Read the model that a `ModelSource` names, but for its weights, which stay in their files; and find its adapters."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from headrace.core.errors import SettingsError
from headrace.core.progress import Progress
from headrace.inference.engine.config import ModelSource
from headrace.inference.models.loading import load_hf_model, load_model
from headrace.inference.models.model import HfModel, Model
from headrace.inference.models.peft_adapter import is_peft_folder
from headrace_handler.stray_files import listed

_ADAPTERS: Final = "adapters"
"""Source: LMI, which registers every adapter in this folder beside the model."""


def read_model(source: ModelSource, progress: Progress) -> Model:
    """Return a model whose network we build; raise `UserError` if it cannot be found or read."""
    return load_model(
        source.model,
        revision=source.revision,
        cache_dir=source.cache_dir,
        chat_template=source.chat_template,
        rope=source.rope,
        generation_config=source.generation_config,
        progress=progress,
    )


def read_hf_model(source: ModelSource, progress: Progress) -> HfModel:
    """Return a model whose network another library builds; raise `UserError` if it cannot be found or read."""
    return load_hf_model(
        source.model,
        revision=source.revision,
        cache_dir=source.cache_dir,
        chat_template=source.chat_template,
        generation_config=source.generation_config,
        progress=progress,
    )


def start_adapters(named: Iterable[str], model: Path) -> dict[str, Path]:
    """
    Return the folders of the adapters to load at the start, by name.

    Args:
        named: Entries of the form `name=folder`.
        model: The model's folder or file; a folder `adapters` beside it is searched too.

    Raises:
        SettingsError: An entry is malformed, a name is given twice, or a folder contains no adapter.
    """
    root = (model if model.is_dir() else model.parent) / _ADAPTERS
    folders = {folder.name: folder for folder in listed(root) if is_peft_folder(folder)}
    given: dict[str, Path] = {}
    for entry in named:
        name, separator, folder = (part.strip() for part in entry.partition("="))
        if not (name and separator and folder):
            raise SettingsError(f"adapter is {entry!r}; expected name=folder.", name="adapter")
        if name in given:
            raise SettingsError(f"The adapter {name} is given twice; expected each name once.", name="adapter")
        given[name] = Path(folder).expanduser().resolve()
        if not is_peft_folder(given[name]):
            raise SettingsError(
                f"The adapter {name} is to be loaded from {folder}, which has no adapter_config.json; "
                "expected a folder that PEFT's save_pretrained wrote.",
                name="adapter",
            )
    return folders | given
