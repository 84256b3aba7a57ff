"""Archives, good and bad, made in memory."""

import io
import tarfile
from collections.abc import Iterable

DEVICE = tarfile.CHRTYPE
PIPE = tarfile.FIFOTYPE
_SIZE, _CHECKSUM = 124, 148
"""Positions of fields in a header. Source: `tar(5)`."""


def file(name: str, content: bytes = b"x", *, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    return info, content


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info, b""


def link(name: str, to: str, *, is_hard: bool = False) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = (tarfile.LNKTYPE if is_hard else tarfile.SYMTYPE), to
    return info, b""


def special(name: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = kind
    return info, b""


def header(name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, size: bytes = b"") -> bytes:
    """Return a member as bytes, with a checksum that is right and other fields that need not be."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    block[_SIZE : _SIZE + len(size)] = size
    block[_CHECKSUM : _CHECKSUM + 8] = b" " * 8
    block[_CHECKSUM : _CHECKSUM + 8] = b"%06o\0 " % sum(block)
    return bytes(block) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def archive(members: Iterable[tuple[tarfile.TarInfo, bytes]], *, mode: str = "w:gz") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return made.getvalue()
