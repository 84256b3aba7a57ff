"""Resolve the name of a model to its folder or file."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.core.errors import ModelNotFound, UnsupportedModel
from headrace.core.progress import Progress
from headrace.inference.models.aliases import ALIASES
from headrace.inference.models.gguf_file import split_parts
from headrace.inference.models.hub import fetch_from_hub, parse_hub_ref
from headrace.inference.models.object_store import SCHEME, fetch_from_s3
from headrace.inference.models.snapshots import PARAMS
from headrace.inference.models.wheels import fetch_alias
from headrace_handler.stray_files import listed

MODELS_FOLDER: Final = "models"
PACKED_FOLDER: Final = "packed"


@dataclass(frozen=True, slots=True)
class Located:
    """A model on the local disk."""

    name: str
    """The short form of the requested name."""
    path: Path
    """A folder with a config.json (or Mistral's params.json), or a `.gguf` file."""


def home_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of `models/` (downloads) and `packed/` (weights): `$HEADRACE_HOME` or `~/.cache/headrace`."""
    return Path(environment.get("HEADRACE_HOME") or "~/.cache/headrace").expanduser()


def locate(ref: str | Located, *, revision: str | None, home: Path, progress: Progress) -> Located:
    """
    Find a model: try an alias, then an S3 prefix, a local path, and a Hub id. A located one is returned as it is.

    Raises:
        ModelNotFound: nothing has that name; the message lists the accepted forms.
        UnsupportedModel: the location is of a kind that is not supported.
    """
    if isinstance(ref, Located):
        return ref
    if ref in ALIASES:
        return Located(ref, fetch_alias(ALIASES[ref], home / MODELS_FOLDER / ref, progress))
    if ref.startswith(SCHEME):
        if revision is not None:
            raise UnsupportedModel(f"{ref} has no revisions; expected no revision beside an s3:// address.")
        return Located(ref.rstrip("/"), _model_path(fetch_from_s3(ref, home, progress)))
    path = Path(os.path.expanduser(ref))  # noqa: PTH111 - leaves an unknown ~user alone
    if ref and path.exists():
        return _local(path)
    hub_ref = parse_hub_ref(ref)
    if hub_ref is None or ref.startswith(("/", "./", "../", "~")) or os.sep * 2 in ref:  # it names a path
        raise not_found(ref)
    return Located(ref, _model_path(fetch_from_hub(hub_ref, revision, progress)))


def _model_path(copy: Path) -> Path:
    """Return a downloaded folder, or the GGUF file that it consists of."""
    is_gguf = copy.is_dir() and not (copy / "config.json").exists() and any(listed(copy, ["*.gguf"]))
    return _local(copy).path if is_gguf else copy


def _local(path: Path) -> Located:
    if path.is_file():
        if path.suffix != ".gguf":
            raise UnsupportedModel(f"{path} is not a .gguf file. Give the folder that contains config.json.")
        return Located(path.stem, path)
    name = path.resolve().name
    if any((path / file).is_file() for file in ("config.json", PARAMS)):
        return Located(name, path)
    files = listed(path, ["*.gguf"])
    if files and files == split_parts(files[0]):
        return Located(name, files[0])
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelNotFound(f"{path} contains several GGUF files ({names}). Give the path of one of them.")
    raise ModelNotFound(
        f"{path} contains neither a config.json nor a .gguf file, so it is not a model. Code that serves a model is "
        "found as model.py with a function handle, code/inference.py, or a .mar archive."
    )


def not_found(ref: str) -> ModelNotFound:
    near = difflib.get_close_matches(ref, ALIASES, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return ModelNotFound(
        f"There is no model {ref!r}: it is not an alias ({', '.join(ALIASES)}), a local file or folder, "
        f"an s3:// prefix or a Hub id (organisation/name).{hint}",
        model=ref,
    )
