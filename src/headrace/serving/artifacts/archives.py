"""
Unpack untrusted model archives: tar, plain or compressed with gzip, bzip2 or xz.

Nothing is written outside of the target folder: names are checked, and links are made after all files and only if they
lead to something inside. Devices and pipes are refused. The output is bounded in disk space, time, number of files, and
in its ratio to the size of the archive.
"""

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

from headrace.serving.artifacts.fetch_bounds import FetchFailed, Guard, copy_stream, translate_os_errors
from headrace_handler.stray_files import is_stray

_MAX_HEADER_BYTES: Final = 1 << 20
"""Largest extended header of a member (a long name, for example); such headers are read into memory whole."""
_LONG_NUMBER: Final = re.compile(rb"\d{101}")
"""Python before 3.11.10 searches extended headers in time quadratic in the digits of a row (CVE-2024-6232)."""
_SPARSE: Final = b" GNU.sparse."
_PADDING_READS: Final = 16
_HEADER_TYPES: Final = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_REPACK: Final = "Pack it with `tar czf model.tar.gz -C FOLDER .`."
_MAX_XZ_BYTES: Final = 128 << 20
"""Memory for the dictionary of an xz archive: `xz -9` needs 65 MiB, and an archive may ask for 4 GiB."""
_MAX_EMPTY_READS: Final = 64
"""Reads after the end of the content; `tarfile` skips the declared size of a member without looking for the end."""
_BROKEN: Final = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)
DAMAGED_HEADERS: Final = (ValueError, IndexError, KeyError, OverflowError, RecursionError, AttributeError)
"""Raised by `tarfile` for damaged headers, such as extended ones without a length or one inside another."""


def unpack(read: Callable[[int], bytes], target: Path, guard: Guard, *, name: str) -> None:
    """
    Unpack an archive, which errors call `name`, into an empty folder.

    `read` returns the next bytes of the archive, at most as many as asked for; none at its end. Raises `FetchFailed`
    if the archive has another format, is broken, or has a member that is refused.
    """
    packed = _Packed(read)
    try:
        with _decompressed(packed, name) as plain:
            counted = cast("IO[bytes]", _Plain(plain, packed, guard, name))  # has what a stream needs
            with tarfile.open(fileobj=counted, mode="r|", bufsize=1 << 20, tarinfo=Member) as archive:
                _Extraction(archive, packed, target, guard, name).run()
            for _ in range(_PADDING_READS):  # read up to the checksum, which follows the padding
                if not plain.read(1 << 20):
                    break
    except (*_BROKEN, *DAMAGED_HEADERS, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the network or the disk; decompressors raise OSError without a number
        reason = "a header is damaged" if isinstance(error, DAMAGED_HEADERS) else str(error) or type(error).__name__
        raise FetchFailed(f"{name} is not a complete tar.gz archive ({reason}). {_REPACK}") from error


def safe_path(name: str, where: str) -> PurePosixPath:
    """Normalise a member's path, relative to the model's folder (`.`); raises `FetchFailed` if it leads outside."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise FetchFailed(f"{where} contains {name!r}, which would be outside of the model's folder. {_REPACK}")
    return PurePosixPath(*parts)


class Member(tarfile.TarInfo):
    """
    A header of a stranger's archive; refuses what makes `tarfile` work without bounds before it returns the member.

    These are extended headers of more than `_MAX_HEADER_BYTES` or with endless numbers, and sparse files: a map of
    holes is read into memory whole, which took 2.7 GB for 262 KB.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "Member":
        member = super().frombuf(buf, encoding, errors)
        if member.type in _HEADER_TYPES and member.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        if member.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(f"{member.name!r} is a sparse file")
        return member

    def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        stream = archive.fileobj
        content = stream.read(self._block(self.size))  # type: ignore[attr-defined]
        if _SPARSE in content:
            raise tarfile.ReadError("it has a sparse file")
        if _LONG_NUMBER.search(content):
            raise tarfile.ReadError("a header with a number of more than 100 digits")

        def again(_size: int) -> bytes:
            archive.fileobj = stream
            return content

        archive.fileobj = cast("IO[bytes]", _Reader(again))
        return cast("tarfile.TarInfo", super()._proc_pax(archive))  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class _Reader:
    """The end of a stream that `tarfile` reads an extended header from."""

    read: Callable[[int], bytes]


class _Packed(io.RawIOBase):
    """The packed bytes of the archive as a stream that counts them."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        piece = self._read(len(buffer))
        buffer[: len(piece)] = piece
        self.num_bytes += len(piece)
        return len(piece)


class _Plain:
    """The unpacked content, headers included, as a stream within the limits of the fetch."""

    def __init__(self, content: IO[bytes], packed: _Packed, guard: Guard, name: str) -> None:
        self._content = content
        self._packed = packed
        self._guard = guard
        self._name = name
        self._num_bytes = 0
        self._num_empty = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes; raise EOFError if the caller goes on at the end."""
        self._guard.deadline.check()
        piece = self._content.read(size)
        self._num_bytes += len(piece)
        self._num_empty = 0 if piece else self._num_empty + 1
        if self._num_empty > _MAX_EMPTY_READS:
            raise EOFError("it ends within a member")
        self._guard.check_ratio(self._packed.num_bytes, self._name, num_bytes=self._num_bytes)
        return piece


class _Xz(io.RawIOBase):
    """The content of xz streams as `lzma.LZMAFile` reads them, within a bound of memory."""

    def __init__(self, packed: "io.BufferedReader[_Packed]") -> None:
        self._packed = packed
        self._begin_stream()

    def _begin_stream(self) -> None:
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        piece = b""
        while not piece:
            packed = self._next_bytes()
            if self._stream.eof:
                return 0
            piece = self._stream.decompress(packed, len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def _next_bytes(self) -> bytes:
        """Return packed bytes for the stream, which may be a new one; none at the end, or while it has output left."""
        if self._stream.eof:
            packed = (self._stream.unused_data or self._packed.read1()).lstrip(b"\0")  # streams may be padded
            if packed:
                self._begin_stream()
            return packed
        packed = self._packed.read1() if self._stream.needs_input else b""
        if not packed and self._stream.needs_input:
            raise EOFError("it ends within its xz stream")
        return packed


def _decompressed(packed: _Packed, name: str) -> IO[bytes]:
    """Decompress by the format that the first bytes show, regardless of the file name."""
    buffered = io.BufferedReader(packed, 1 << 20)
    head = buffered.peek(6)
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=buffered, mode="rb")  # type: ignore[return-value]
    if head.startswith(b"BZh"):
        return bz2.BZ2File(buffered)
    if head.startswith(b"\xfd7zXZ"):
        return io.BufferedReader(_Xz(buffered), 1 << 20)
    if head.startswith((b"PK\x03\x04", b"(\xb5/\xfd", b"GGUF")):
        raise FetchFailed(f"{name} is a file of another kind; expected a tar.gz archive. {_REPACK}")
    return buffered


@dataclass(frozen=True, slots=True)
class _Extraction:
    _archive: tarfile.TarFile
    _packed: _Packed
    _target: Path
    _guard: Guard
    _name: str
    _links: list[tuple[Path, str]] = field(default_factory=list)

    def run(self) -> None:
        while (member := self._archive.next()) is not None:
            self._archive.members.clear()  # type: ignore[attr-defined] # tarfile would keep all headers in memory
            with translate_os_errors(f"{member.name!r} of {self._name}"):
                self._extract(member)
        with translate_os_errors(f"A link of {self._name}"):
            self._make_links()

    def _extract(self, member: tarfile.TarInfo) -> None:
        path = self._target / safe_path(member.name, self._name)
        self._guard.add_file()
        if path == self._target or is_stray(member.name):
            return
        self._make_folder(path.parent)
        if member.isdir():
            self._make_folder(path)
        elif member.isfile():
            self._write(member, path)
        elif member.issym():
            self._links.append((path, member.linkname))
        elif member.islnk():
            self._make_hard_link(member, path)
        else:
            raise FetchFailed(f"{self._name} contains {member.name!r}, a device or pipe. {_REPACK}")

    def _make_folder(self, path: Path) -> None:
        """Make a folder and its parents. Links are made after all files, so an existing folder is not a link."""
        if path.is_dir():
            return
        for missing in reversed([folder for folder in (path, *path.parents) if not folder.is_dir()]):
            self._guard.add_file()
            missing.mkdir(mode=0o755)

    def _write(self, member: tarfile.TarInfo, path: Path) -> None:
        self._guard.expect(member.size, f"{member.name!r} of {self._name}")
        source = self._archive.extractfile(member)
        assert source is not None
        path.unlink(missing_ok=True)  # a later member of the same name replaces the earlier one
        with source:
            mode = 0o755 if member.mode & 0o100 else 0o644
            copy_stream(lambda size: self._checked(source.read(size)), path, self._guard, mode=mode)
        if path.stat().st_size != member.size:
            raise tarfile.ReadError(f"{member.name!r} is truncated")

    def _checked(self, piece: bytes) -> bytes:
        self._guard.check_ratio(self._packed.num_bytes, self._name)
        return piece

    def _make_hard_link(self, member: tarfile.TarInfo, path: Path) -> None:
        source = self._target / safe_path(member.linkname, self._name)
        if not source.is_file():
            raise FetchFailed(
                f"{self._name} links {member.name!r} to {member.linkname!r}, which is not in the archive. {_REPACK}"
            )
        if source != path:
            path.unlink(missing_ok=True)
            os.link(source, path)

    def _make_links(self) -> None:
        """Make all links, then check their targets: a link may lead through another one."""
        for path, to in self._links:
            if path.is_symlink() or path.is_file():
                path.unlink()
            path.symlink_to(to)
        root = self._target.resolve()
        for path, to in self._links:
            if not _leads_inside(path, root):
                raise FetchFailed(
                    f"{self._name} links {path.name!r} to {to!r}, which is not in the archive. "
                    "Pack the targets of links: `tar czhf model.tar.gz -C FOLDER .`."
                )


def _leads_inside(path: Path, root: Path) -> bool:
    try:
        return path.resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):  # a dangling link, or a loop
        return False
