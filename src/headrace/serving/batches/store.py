"""
The folder of files and batches. The methods block: call them in a thread.

Each owner has a folder of its own, so that no name leads to another owner's files. A file exists when its description
exists, a batch while it has a folder. The process that runs the batches writes their state; a cancellation is a file
beside it, because any process that shares the folder may accept one. A marker in `open` stands for each batch that has
not ended.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from headrace.core.durable import sync_folder, write_durably
from headrace.core.errors import Busy, PayloadTooLarge
from headrace.core.sizes import format_size
from headrace.core.telemetry import get_logger
from headrace.serving.wire.batches import ENDED, Batch
from headrace.serving.wire.openai.batches import no_batch
from headrace.serving.wire.openai.files import StoredFile, no_file

MAX_OPEN: Final = 1000
"""Batches that have not ended, of all owners."""
MAX_FILES: Final = 10_000
"""Files of one owner."""
KEEP_S: Final = 30 * 86_400.0
"""Time for which an ended batch is listed."""
_STRAY_S: Final = 86_400.0
"""Age of an upload, or of a marker without a batch, after which it is a killed process's."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_STATE, _CANCEL, _INPUT = "batch.json", "cancel", "input"
OUTPUT, ERRORS = "output", "errors"

_decode_file = msgspec.json.Decoder(StoredFile).decode
_decode_batch = msgspec.json.Decoder(Batch).decode

_T = TypeVar("_T", StoredFile, Batch)


def new_id(prefix: str) -> str:
    """Return an id; those of one prefix sort by their time."""
    return f"{prefix}{time.time_ns() // 1000:014x}{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class BatchKey:
    """A batch with its owner, as their folders are called."""

    owner: str
    batch_id: str


@dataclass(frozen=True, slots=True)
class Paging:
    """The part of a list that a client asks for: `order` is `asc` or `desc`; the others are ids."""

    limit: int
    order: str = "desc"
    after: str | None = None
    before: str | None = None


class BatchStore:
    def __init__(self, root: Path, *, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        """Use a folder, which is created with its first file; `max_bytes` is for the files of all owners."""
        self.root = root
        self._max_bytes = max_bytes
        self._clock = clock

    def owner(self, caller: str) -> str:
        """Return the name of an owner's folder; `caller` is the id of an access key, or empty."""
        if not caller:
            return "_"
        return caller if _NAME.fullmatch(caller) else sha256(caller.encode()).hexdigest()

    # Files.

    def new_upload(self, owner: str) -> Path:
        """Return the path of an upload; raise `PayloadTooLarge` or `Busy` if there is no room for another file."""
        if sum(1 for _ in _names(self._home(owner) / "files")) >= 2 * MAX_FILES:  # each has a description
            raise Busy(f"There are {MAX_FILES} files; expected fewer. Delete some.", retry_after_s=60.0)
        if self.num_bytes() >= self._max_bytes:
            raise PayloadTooLarge(
                f"The files of batches have {format_size(self._max_bytes)} or more, as many as are kept (batch_bytes). "
                "Delete some, or wait until they expire."
            )
        folder = self._made(self.root / "uploads")
        return folder / secrets.token_hex(16)

    def num_bytes(self) -> int:
        """Return the bytes of all files, input and results of batches included; those of several names once."""
        sizes = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                with suppress(OSError):
                    found = (Path(folder) / name).stat()
                    sizes[found.st_ino] = found.st_size
        return sum(sizes.values())

    def add_file(self, owner: str, content: Path, file: StoredFile) -> None:
        """Take `content` over as a file; without effect if it was taken over before."""
        folder = self._made(self._home(owner) / "files")
        if content.exists():
            content.rename(folder / file.id)
            sync_folder(folder)
        write_durably(folder / f"{file.id}.json", msgspec.json.encode(file))

    def file(self, owner: str, file_id: str) -> StoredFile:
        """Return a file; raise `NotFound` if there is none, or it has expired."""
        found = self._load(self._home(owner) / "files", f"{file_id}.json", _decode_file)
        if found is None or found.expires_s <= self._clock():
            raise no_file(file_id)
        return found

    def content(self, owner: str, file_id: str) -> Path:
        """Return the path of a file's content; raise `NotFound`."""
        return self.content_path(owner, self.file(owner, file_id).id)

    def content_path(self, owner: str, file_id: str) -> Path:
        """Return the path of the content of a file, which need not exist."""
        return self._home(owner) / "files" / file_id

    def delete_file(self, owner: str, file_id: str) -> None:
        """Delete a file; raise `NotFound`. A batch keeps the input that it was created with."""
        path = self.content(owner, file_id)
        path.with_name(f"{path.name}.json").unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def files(self, owner: str, paging: Paging, *, purpose: str | None = None) -> tuple[list[StoredFile], bool]:
        """Return a page of files; True: there are more."""
        folder, now_s = self._home(owner) / "files", self._clock()

        def load(file_id: str) -> StoredFile | None:
            file = self._load(folder, f"{file_id}.json", _decode_file)
            is_listed = file is not None and file.expires_s > now_s and purpose in {None, file.purpose}
            return file if is_listed else None

        return _page((name[:-5] for name in _names(folder) if name.endswith(".json")), load, paging)

    # Batches.

    def add_batch(self, owner: str, batch: Batch, content: Path) -> None:
        """
        Store a new batch, which keeps its input even if the file is deleted.

        `content` is the file, or an upload that becomes the input. Raises `Busy` if too many batches have not ended.
        """
        markers = self._made(self.root / "open")
        if sum(1 for _ in markers.iterdir()) >= MAX_OPEN:
            raise Busy(f"{MAX_OPEN} batches have not ended; expected fewer. Try again later.", retry_after_s=60.0)
        folder = self._made(self._home(owner) / "batches" / batch.id)
        try:
            (folder / _INPUT).hardlink_to(content)
        except FileNotFoundError:  # it was deleted since it was looked up
            raise no_file(batch.input_file_id) from None
        (markers / f"{owner}.{batch.id}").touch()
        sync_folder(markers)
        self.save(owner, batch)

    def save(self, owner: str, batch: Batch) -> None:
        """Store the state of a batch durably; nothing if it was deleted."""
        with suppress(FileNotFoundError):
            write_durably(self.folder(owner, batch.id) / _STATE, msgspec.json.encode(batch))

    def batch(self, owner: str, batch_id: str) -> Batch:
        """Return a batch, or raise `NotFound`."""
        found = self._load_batch(owner, batch_id)
        if found is None:
            raise no_batch(batch_id)
        return found

    def batches(self, owner: str, paging: Paging, *, is_messages: bool) -> tuple[list[Batch], bool]:
        """Return a page of the batches of one API; True: there are more."""

        def load(batch_id: str) -> Batch | None:
            found = self._load_batch(owner, batch_id)
            return found if found is not None and found.is_messages == is_messages else None

        return _page(_names(self._home(owner) / "batches"), load, paging)

    def folder(self, owner: str, batch_id: str) -> Path:
        return self._home(owner) / "batches" / batch_id

    def input(self, owner: str, batch_id: str) -> Path:
        return self.folder(owner, batch_id) / _INPUT

    def cancel(self, owner: str, batch_id: str) -> None:
        """Ask the process that runs a batch to cancel it. Idempotent: the first call counts."""
        with suppress(FileExistsError):
            (self.folder(owner, batch_id) / _CANCEL).touch(exist_ok=False)

    def cancelling_s(self, owner: str, batch_id: str) -> float | None:
        """Return when the cancellation of a batch was requested."""
        with suppress(FileNotFoundError):
            return (self.folder(owner, batch_id) / _CANCEL).stat().st_mtime
        return None

    def open_batches(self) -> list[BatchKey]:
        """Return the batches that have not ended, the oldest first."""
        names = (BatchKey(*name.partition(".")[::2]) for name in _names(self.root / "open"))
        return sorted(names, key=lambda key: key.batch_id.rpartition("_")[2])

    def close(self, owner: str, batch_id: str) -> None:
        """Note that a batch has ended, and remove its input."""
        self.input(owner, batch_id).unlink(missing_ok=True)
        (self.root / "open" / f"{owner}.{batch_id}").unlink(missing_ok=True)

    def delete_batch(self, owner: str, batch_id: str) -> None:
        shutil.rmtree(self.folder(owner, batch_id), ignore_errors=True)

    def sweep(self) -> None:
        """Remove expired files, batches that ended long ago, and what killed processes have left."""
        now_s = self._clock()
        for place in (self.root / "uploads", self.root / "open"):
            for name in _names(place):
                path, key = place / name, BatchKey(*name.partition(".")[::2])
                is_stray = place.name == "uploads" or not (self.folder(key.owner, key.batch_id) / _STATE).exists()
                with suppress(FileNotFoundError):
                    if is_stray and path.stat().st_mtime < now_s - _STRAY_S:
                        path.unlink()
        for owner in _names(self.root / "owners"):
            self._sweep_owner(owner, now_s)

    def _sweep_owner(self, owner: str, now_s: float) -> None:
        files = self._home(owner) / "files"
        for name in _names(files):
            described = self._load(files, f"{name.removesuffix('.json')}.json", _decode_file)
            is_stray = described is None and (files / name).stat().st_mtime < now_s - _STRAY_S
            if is_stray or (described is not None and described.expires_s <= now_s):
                (files / name).unlink(missing_ok=True)
        for batch_id in _names(self._home(owner) / "batches"):
            batch = self._load_batch(owner, batch_id)
            if batch is not None and batch.status in ENDED and batch.reached_s[batch.status] < now_s - KEEP_S:
                self.delete_batch(owner, batch_id)

    def _home(self, owner: str) -> Path:
        return self.root / "owners" / owner

    def _load_batch(self, owner: str, batch_id: str) -> Batch | None:
        return self._load(self._home(owner) / "batches", f"{batch_id}/{_STATE}", _decode_batch)

    def _load(self, folder: Path, name: str, decode: Callable[[bytes], _T]) -> _T | None:
        """Read a description; None if there is none, or it cannot be read. Names come from clients."""
        if not _NAME.fullmatch(name.removesuffix(f"/{_STATE}").removesuffix(".json")):
            return None
        try:
            return decode((folder / name).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            get_logger().error("batch.unreadable", file=name, reason=type(error).__name__)
            return None

    def _made(self, folder: Path) -> Path:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


def _names(folder: Path) -> Iterator[str]:
    """Yield the names in a folder; none if it does not exist."""
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from (path.name for path in folder.iterdir())


def _page(ids: Iterable[str], load: Callable[[str], _T | None], paging: Paging) -> tuple[list[_T], bool]:
    """Return the items of a page, of ids that sort by their time; True: there are more in its direction."""
    is_descending = paging.order == "desc"
    found = sorted(ids, reverse=is_descending)
    if paging.after is not None:
        found = [name for name in found if (name < paging.after if is_descending else name > paging.after)]
    if paging.before is not None:  # the page that ends in front of it
        found = [name for name in found if (name > paging.before if is_descending else name < paging.before)][::-1]
    kept: list[_T] = []
    for name in found:
        item = load(name)
        if item is not None:
            kept.append(item)
        if len(kept) > paging.limit:
            break
    page = kept[: paging.limit]
    return (page[::-1] if paging.before is not None else page), len(kept) > paging.limit
