"""Archives, good and bad, made in memory."""

import io
import tarfile
from collections.abc import Iterable

DEVICE = tarfile.CHRTYPE
PIPE = tarfile.FIFOTYPE


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


def archive(members: Iterable[tuple[tarfile.TarInfo, bytes]], *, mode: str = "w:gz") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return made.getvalue()
