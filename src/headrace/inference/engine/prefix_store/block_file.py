"""
One file of the prefix cache on disk: a row of memory behind a header with its identity and a checksum.

A header is compared as a whole with the one that is expected, the size of the row included, so nothing in a file is
believed. A file is written under another name and renamed. There is no fsync: what a power cut leaves of a file does
not match its checksum, and the prefix is computed again.
"""

import os
import re
import secrets
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.inference.engine.core.stored_blocks import Kind, StoreKey

Row = npt.NDArray[np.uint8]

HEADER: Final = struct.Struct("<8s16s16s8sQ")
"""Magic, identity of the model and its formats, hash of the block, kind, bytes of the row; a checksum follows."""
_CHECKSUM: Final = struct.Struct("<I4x")
HEADER_BYTES: Final = HEADER.size + _CHECKSUM.size
_MAGIC: Final = b"HRPREFIX"
TEMPORARY: Final = ".tmp"
_KINDS: Final[dict[str, Kind]] = {"kv": "kv", "state": "state"}
_NAME: Final = re.compile("[0-9a-f]{32}")
_DEPTH_S: Final = 2.0
"""A file counts as older by this for each block before it, so that the end of a prefix is removed before its start."""


class DamagedFile(Exception):
    """A file does not hold what its name says."""


@dataclass(frozen=True, slots=True)
class BlockFolder:
    """The files of one model in one format."""

    path: Path
    identity: bytes

    def file(self, key: StoreKey) -> Path:
        return self.path / f"{key.block_hash.hex()}.{key.kind}"

    def read(self, key: StoreKey, row: Row) -> None:
        """
        Fill a row of memory.

        Raises:
            OSError: There is no such file, or it cannot be read.
            DamagedFile: The row is now undefined.
        """
        head = bytearray(HEADER_BYTES)
        # Not blocking: a pipe of this name would hold the thread.
        handle = os.open(self.file(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size != HEADER_BYTES + row.nbytes:
                raise DamagedFile(f"its size is {facts.st_size}; expected {HEADER_BYTES + row.nbytes}")
            is_whole = _move(os.readv, handle, [memoryview(head), row.data])
        finally:
            os.close(handle)
        if not is_whole or head != self._head(key, row):
            raise DamagedFile("its header or its checksum is wrong")

    def write(self, key: StoreKey, row: Row, *, depth: int, is_valid: Callable[[], bool]) -> bool:
        """
        Write a row of memory that others may change; return False, without a file, if it was changed meanwhile.

        Raises OSError.
        """
        path = self.file(key)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                _move(os.writev, handle, [memoryview(self._head(key, row)), row.data])
                os.utime(handle, _times(depth))
            finally:
                os.close(handle)
            if not is_valid():  # after the bytes were read for the last time
                temporary.unlink()
                return False
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return True

    def touch(self, key: StoreKey, *, depth: int) -> None:
        """Record that a file is used, so that others are removed before it. Raises OSError."""
        os.utime(self.file(key), _times(depth))

    def list_keys(self) -> Iterator[StoreKey]:
        """Yield the keys of all files; none if the folder cannot be listed."""
        with suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                name, _, suffix = entry.name.partition(".")
                if suffix in _KINDS and _NAME.fullmatch(name):
                    yield StoreKey(_KINDS[suffix], bytes.fromhex(name))

    def _head(self, key: StoreKey, row: Row) -> bytes:
        head = HEADER.pack(_MAGIC, self.identity, key.block_hash, key.kind.encode(), row.nbytes)
        return head + _CHECKSUM.pack(zlib.crc32(row.data, zlib.crc32(head)))


def _times(depth: int) -> tuple[float, float]:
    """Return the times of access and change of a file that is used now."""
    now_s = time.time() - depth * _DEPTH_S
    return now_s, now_s


def _move(call: Callable[[int, list[memoryview]], int], handle: int, parts: list[memoryview]) -> bool:
    """Read or write all parts, which the system may move in pieces; return False at the end of the file."""
    while parts:
        num_bytes = call(handle, parts)
        if not num_bytes:
            return False
        while parts and num_bytes >= len(parts[0]):
            num_bytes -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][num_bytes:]
    return True
