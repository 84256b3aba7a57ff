"""Adapters to load at the start: those that the settings name, and those in the folder `adapters` of the model."""

from collections.abc import Iterable
from pathlib import Path

from headrace.core.errors import SettingsError
from headrace.inference.models.peft_adapter import is_peft_folder
from headrace_handler.stray_files import listed

FOLDER = "adapters"
"""Source: LMI, which registers every adapter in this folder beside the model."""


def start_adapters(named: Iterable[str], model: Path) -> dict[str, Path]:
    """
    Return the folders of adapters by name.

    Args:
        named: Entries of the form `name=folder`.
        model: The model's folder or file.

    Raises:
        SettingsError: An entry is malformed, a name is given twice, or a folder contains no adapter.
    """
    root = (model if model.is_dir() else model.parent) / FOLDER
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
