"""
The folder of files and batches. The methods block: call them in a thread.

Each owner has a folder of its own, so that no name leads to another owner's files. A file exists when its description
exists, a batch when its state does. The process that runs the batches writes their state; a cancellation is a file
beside it, because any process that shares the files may accept one. A marker in `open` stands for each batch that has
not ended. Machines may share the files (`core.files`).
"""

import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec

from headrace.core.durable import sync_folder
from headrace.core.errors import Busy, PayloadTooLarge
from headrace.core.files import Files
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

_READ_AT_ONCE: Final = 100
"""Descriptions that are read together."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_STATE, _CANCEL, _INPUT, _PROGRESS = "batch.json", "cancel", "input", "progress"
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
    def __init__(self, files: Files, *, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        """Use a folder of files; `max_bytes` is for those of all owners."""
        self._files = files
        self.root = files.root
        self._max_bytes = max_bytes
        self._clock = clock

    def fenced(self, term: int) -> Self:
        """Return this store for the process that leads in a term."""
        return type(self)(self._files.fenced(term), max_bytes=self._max_bytes, clock=self._clock)

    def owner(self, caller: str) -> str:
        """Return the name of an owner's folder; `caller` is the id of an access key, or empty."""
        if not caller:
            return "_"
        return caller if _NAME.fullmatch(caller) else sha256(caller.encode()).hexdigest()

    # Files.

    def new_upload(self, owner: str) -> Path:
        """Return the path of an upload; raise `PayloadTooLarge` or `Busy` if there is no room for another file."""
        if len(self._described(owner)) >= MAX_FILES:
            raise Busy(f"There are {MAX_FILES} files; expected fewer. Delete some.", retry_after_s=60.0)
        if self._files.num_bytes() >= self._max_bytes:
            raise PayloadTooLarge(
                f"The files of batches have {format_size(self._max_bytes)} or more, as many as are kept (batch_bytes). "
                "Delete some, or wait until they expire."
            )
        folder = self._files.folder(self.root / "uploads")
        return folder / secrets.token_hex(16)

    def add_file(self, owner: str, content: Path, file: StoredFile) -> None:
        """Take `content` over as a file; without effect if it was taken over before."""
        folder = self._files.folder(self._home(owner) / "files")
        if content.exists():
            content.rename(folder / file.id)
            sync_folder(folder)
            self._files.keep(folder / file.id)
        self._files.write(folder / f"{file.id}.json", msgspec.json.encode(file))

    def file(self, owner: str, file_id: str) -> StoredFile:
        """Return a file; raise `NotFound` if there is none, or it has expired."""
        found = self._load(self._home(owner) / "files" / f"{file_id}.json", file_id, _decode_file)
        if found is None or found.expires_s <= self._clock():
            raise no_file(file_id)
        return found

    def content(self, owner: str, file_id: str) -> Path:
        """Return the path of a file's content; raise `NotFound`."""
        try:
            return self._files.fetch(self.content_path(owner, self.file(owner, file_id).id))
        except FileNotFoundError:  # it was deleted since it was looked up
            raise no_file(file_id) from None

    def content_path(self, owner: str, file_id: str) -> Path:
        """Return the path of the content of a file, which need not exist."""
        return self._home(owner) / "files" / file_id

    def delete_file(self, owner: str, file_id: str) -> None:
        """Delete a file; raise `NotFound`. A batch keeps the input that it was created with."""
        path = self.content_path(owner, self.file(owner, file_id).id)
        self._files.remove(path.with_name(f"{path.name}.json"))
        self._files.discard(path)

    def files(self, owner: str, paging: Paging, *, purpose: str | None = None) -> tuple[list[StoredFile], bool]:
        """Return a page of files; True: there are more."""
        folder, now_s = self._home(owner) / "files", self._clock()

        def is_listed(file: StoredFile) -> bool:
            return file.expires_s > now_s and purpose in {None, file.purpose}

        return self._page(self._described(owner), lambda name: folder / f"{name}.json", _decode_file, is_listed, paging)

    # Batches.

    def add_batch(self, owner: str, batch: Batch, content: Path) -> None:
        """
        Store a new batch, which keeps its input even if the file is deleted.

        `content` is the file, or an upload that becomes the input. Raises `Busy` if too many batches have not ended.
        """
        markers = self.root / "open"
        if len(self._files.names(markers)) >= MAX_OPEN:
            raise Busy(f"{MAX_OPEN} batches have not ended; expected fewer. Try again later.", retry_after_s=60.0)
        copy = self.folder(owner, batch.id) / _INPUT
        try:
            copy.hardlink_to(content)
        except FileNotFoundError:  # it was deleted since it was looked up
            raise no_file(batch.input_file_id) from None
        sync_folder(copy.parent)
        self._files.keep(copy)
        self._files.write(markers / f"{owner}.{batch.id}", b"")
        self.save(owner, batch)

    def save(self, owner: str, batch: Batch) -> None:
        """Store the state of a batch durably."""
        self._files.write(self._batch(owner, batch.id) / _STATE, msgspec.json.encode(batch))

    def batch(self, owner: str, batch_id: str) -> Batch:
        """Return a batch, or raise `NotFound`."""
        found = self._load_batch(owner, batch_id)
        if found is None:
            raise no_batch(batch_id)
        return found

    def batches(self, owner: str, paging: Paging, *, is_messages: bool) -> tuple[list[Batch], bool]:
        """Return a page of the batches of one API; True: there are more."""
        folder = self._home(owner) / "batches"

        def is_listed(batch: Batch) -> bool:
            return batch.is_messages == is_messages

        ids = self._files.names(folder)
        return self._page(ids, lambda name: folder / name / _STATE, _decode_batch, is_listed, paging)

    def folder(self, owner: str, batch_id: str) -> Path:
        """Return the folder of a batch on this machine, created if need be."""
        return self._files.folder(self._batch(owner, batch_id))

    def input(self, owner: str, batch_id: str) -> Path:
        """Return the path of the input of a batch. Raises `FileNotFoundError`: it has ended."""
        return self._files.fetch(self._batch(owner, batch_id) / _INPUT)

    def progress(self, owner: str, batch_id: str) -> "Progress | None":
        """Return the log of the results of a batch; None: those in its folder are all."""
        path = self._batch(owner, batch_id) / _PROGRESS
        return Progress(self._files, path) if self._files.is_shared else None

    def keep_results(self, owner: str, batch_id: str) -> None:
        """Keep the results of a batch that has them in its folder, and not as files."""
        for name in (OUTPUT, ERRORS):
            if (path := self._batch(owner, batch_id) / name).exists():
                self._files.keep(path)

    def results(self, owner: str, batch_id: str) -> list[Path]:
        """Return the files with the results of a batch that has them in its folder."""
        found = []
        for name in (OUTPUT, ERRORS):
            with suppress(FileNotFoundError):
                found.append(self._files.fetch(self._batch(owner, batch_id) / name))
        return found

    def cancel(self, owner: str, batch_id: str) -> None:
        """Ask the process that runs a batch to cancel it. Idempotent: the first call counts."""
        path = self._batch(owner, batch_id) / _CANCEL
        if self._files.read(path) is None:
            self._files.write(path, str(self._clock()).encode())

    def cancelling_s(self, owner: str, batch_id: str) -> float | None:
        """Return when the cancellation of a batch was requested."""
        content = self._files.read(self._batch(owner, batch_id) / _CANCEL)
        return None if content is None else float(content or self._clock())  # empty: of an earlier version

    def open_batches(self) -> list[BatchKey]:
        """Return the batches that have not ended, the oldest first."""
        names = (BatchKey(*name.partition(".")[::2]) for name in self._files.names(self.root / "open"))
        return sorted(names, key=lambda key: key.batch_id.rpartition("_")[2])

    def close(self, owner: str, batch_id: str) -> None:
        """Note that a batch has ended, and remove its input and the log of its progress."""
        folder = self._batch(owner, batch_id)
        self._files.discard(folder / _INPUT)
        self._files.end_log(folder / _PROGRESS)
        self._files.remove(self.root / "open" / f"{owner}.{batch_id}")

    def delete_batch(self, owner: str, batch_id: str) -> None:
        folder = self._batch(owner, batch_id)
        for name in (_INPUT, OUTPUT, ERRORS):
            self._files.discard(folder / name)
        self._files.remove_tree(folder)

    def sweep(self) -> None:
        """Remove expired files, batches that ended long ago, and what killed processes have left."""
        before_s = self._clock() - _STRAY_S
        uploads = self._files.folder(self.root / "uploads")  # of this machine only
        for path in uploads.iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before_s:
                    path.unlink()
        for key in self.open_batches():
            is_stray = self._files.read(self._batch(key.owner, key.batch_id) / _STATE) is None
            if is_stray and _made_s(key.batch_id) < before_s:
                self.close(key.owner, key.batch_id)
        for owner in self._files.names(self.root / "owners"):
            self._sweep_owner(owner)
        self._files.sweep()

    def _sweep_owner(self, owner: str) -> None:
        folder, now_s = self._home(owner) / "files", self._clock()
        described = self._described(owner)
        for file_id in described:
            file = self._load(folder / f"{file_id}.json", file_id, _decode_file)
            if file is not None and file.expires_s <= now_s:
                self._files.remove(folder / f"{file_id}.json")
                self._files.discard(folder / file_id)
        for name, stored_s in self._files.contents(folder).items():
            if name.removesuffix(".json") not in described and stored_s < now_s - _STRAY_S:
                self._files.discard(folder / name)
        for batch_id in self._files.names(self._home(owner) / "batches"):
            batch = self._load_batch(owner, batch_id)
            if batch is not None and batch.status in ENDED and batch.reached_s[batch.status] < now_s - KEEP_S:
                self.delete_batch(owner, batch_id)

    def _home(self, owner: str) -> Path:
        return self.root / "owners" / owner

    def _batch(self, owner: str, batch_id: str) -> Path:
        return self._home(owner) / "batches" / batch_id

    def _described(self, owner: str) -> set[str]:
        """Return the ids of the files of an owner."""
        names = self._files.names(self._home(owner) / "files")
        return {name.removesuffix(".json") for name in names if name.endswith(".json")}

    def _load_batch(self, owner: str, batch_id: str) -> Batch | None:
        return self._load(self._batch(owner, batch_id) / _STATE, batch_id, _decode_batch)

    def _load(self, path: Path, item_id: str, decode: Callable[[bytes], _T]) -> _T | None:
        """Read a description; None if there is none, or it cannot be read. Ids come from clients."""
        if not _NAME.fullmatch(item_id):
            return None
        try:
            content = self._files.read(path)
        except OSError as error:
            get_logger().error("batch.unreadable", file=item_id, reason=type(error).__name__)
            return None
        return None if content is None else _decoded(decode, content, item_id)

    def _page(
        self,
        ids: Iterable[str],
        path_of: Callable[[str], Path],
        decode: Callable[[bytes], _T],
        is_listed: Callable[[_T], bool],
        paging: Paging,
    ) -> tuple[list[_T], bool]:
        """Return the items of a page, of ids that sort by their time; True: there are more in its direction."""
        found = [name for name in _in_page_order(ids, paging) if _NAME.fullmatch(name)]
        kept: list[_T] = []
        for start in range(0, len(found), _READ_AT_ONCE):
            paths = {path_of(name): name for name in found[start : start + _READ_AT_ONCE]}
            contents = self._files.read_many(paths)
            items = (_decoded(decode, contents[path], name) for path, name in paths.items() if path in contents)
            kept += [item for item in items if item is not None and is_listed(item)]
            if len(kept) > paging.limit:
                break
        page = kept[: paging.limit]
        return (page[::-1] if paging.before is not None else page), len(kept) > paging.limit


@dataclass(frozen=True, slots=True)
class Progress:
    """The log of the results of a batch, from which another machine goes on."""

    files: Files
    path: Path

    def append(self, lines: bytes) -> None:
        self.files.append(self.path, lines)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of all results, each with its line end."""
        for entry in self.files.entries(self.path):
            yield from entry.splitlines(keepends=True)


def _decoded(decode: Callable[[bytes], _T], content: bytes, item_id: str) -> _T | None:
    try:
        return decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        get_logger().error("batch.unreadable", file=item_id, reason=type(error).__name__)
        return None


def _made_s(item_id: str) -> float:
    """Return when an id of `new_id` was made; 0 for another name."""
    try:
        return int(item_id.rpartition("_")[2][:14], 16) / 1e6
    except ValueError:
        return 0.0


def _in_page_order(ids: Iterable[str], paging: Paging) -> list[str]:
    """Return the ids from the beginning of a page on, in its direction."""
    is_descending = paging.order == "desc"
    found = sorted(ids, reverse=is_descending)
    if paging.after is not None:
        found = [name for name in found if (name < paging.after if is_descending else name > paging.after)]
    if paging.before is not None:  # the page that ends in front of it
        found = [name for name in found if (name > paging.before if is_descending else name < paging.before)][::-1]
    return found
