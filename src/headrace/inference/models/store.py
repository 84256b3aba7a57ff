"""Models on the local disk: list, download and remove them (`headrace models`)."""

import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headrace.core.errors import ModelNotFound
from headrace.core.progress import Progress, no_progress
from headrace.inference.models import hub
from headrace.inference.models.object_store import STORE_FOLDER, stored_name
from headrace.inference.models.sources import MODELS_FOLDER, PACKED_FOLDER, Located, locate
from headrace_handler.stray_files import listed


class StoredKind(StrEnum):
    """The origin of an entry of the store."""

    ALIAS = "alias"
    """A model from the package index."""
    HUB = "hub"
    """A model in the cache of the Hugging Face Hub."""
    S3 = "s3"
    """A copy of a prefix in object storage."""
    PACKED = "packed"
    """Weights in the layout of a kernel, packed from a model; rebuilt when missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A model or packed weights on the disk."""

    name: str
    kind: StoredKind
    path: Path
    num_bytes: int


def list_models(home: Path) -> list[StoredModel]:
    """Return everything stored in `home` and in the cache of the Hub."""
    own = [
        StoredModel(
            name=stored_name(path) if kind is StoredKind.S3 else path.name,
            kind=kind,
            path=path,
            num_bytes=_num_bytes(path),
        )
        for kind, folder in (
            (StoredKind.ALIAS, home / MODELS_FOLDER),
            (StoredKind.S3, home / STORE_FOLDER),
            (StoredKind.PACKED, home / PACKED_FOLDER),
        )
        for path in listed(folder)
    ]
    cached = [
        StoredModel(name=repo.repo_id, kind=StoredKind.HUB, path=Path(repo.repo_path), num_bytes=repo.size_on_disk)
        for repo in hub.cached_models()
    ]
    return own + cached


def pull_model(ref: str, *, home: Path, revision: str | None = None, progress: Progress = no_progress) -> Located:
    """Download a model if it is not on the disk yet. Raises like `sources.locate`."""
    return locate(ref, revision=revision, home=home, progress=progress)


def remove_model(name: str, *, home: Path) -> int:
    """
    Delete a stored model or packed weights by their name in `list_models`; `packed` deletes all packed weights.

    Returns:
        The number of bytes freed.

    Raises:
        ModelNotFound: nothing by that name is stored; a folder of the user is never deleted.
    """
    for stored in list_models(home):
        if stored.kind is not StoredKind.HUB and stored.name == name:
            _delete(stored.path)
            return stored.num_bytes
    packed = home / PACKED_FOLDER
    if name == PACKED_FOLDER and packed.is_dir():
        freed = _num_bytes(packed)
        _delete(packed)
        return freed
    freed_from_hub = hub.remove_from_cache(name)
    if freed_from_hub is None:
        raise ModelNotFound(f"No model called {name!r} is stored here. `headrace models ls` shows the stored models.")
    return freed_from_hub


def _num_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
