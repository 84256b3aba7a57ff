"""Archives of models: tar in each compression, and TorchServe's zip files."""

import atexit
import io
import os
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from headrace.serving.artifacts.archives import unpack
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed, Guard
from headrace.serving.handlers.torchserve_archive import unpack_archive
from tests.fuzz.target import Target
from tests.serving.artifacts.archive_maker import archive, file, folder, link

_MEMBERS = [
    *(folder("./"), file("serving.properties", b"engine=MPI\n"), folder("sub"), file("sub/w", b"w" * 600)),
    *(link("latest", "sub/w"), file("a" * 120, b"long name")),
]
_MAX_DISK_BYTES = 64 << 20


@cache
def scene(name: str) -> Path:
    """A folder of this process whose files each case replaces."""
    return Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir=_home()))


@cache
def _home() -> Path:
    """In memory where that is possible: ext4 waits for the disk when a file is written again."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if os.access(memory, os.W_OK) else None))


@atexit.register
def remove_scenes() -> None:
    """Remove all folders; at the end of the process, and of forks, which skip its end."""
    if _home.cache_info().currsize:
        shutil.rmtree(_home(), ignore_errors=True)
        _home.cache_clear()
        scene.cache_clear()


def _guard(target: Path) -> Guard:
    return Guard(
        folder=target,
        deadline=Deadline(60),
        max_files=1000,
        reserve_bytes=0,
        free_bytes=lambda _: _MAX_DISK_BYTES,
        unrationed_bytes=1 << 20,
    )


def _unpacked(extract):
    """Nothing is written beside the target, and no link in it leads out."""
    around = Path(tempfile.mkdtemp(dir=scene("archives")))
    target = around / "target"
    target.mkdir()
    try:
        extract(target)
    finally:
        assert sorted(path.name for path in around.iterdir() if path.name != "m.mar") == ["target"]
        for path in target.rglob("*"):
            assert not path.is_symlink() or path.resolve().is_relative_to(target.resolve()) or not path.exists()
        shutil.rmtree(around)


def _tar(data):
    _unpacked(lambda target: unpack(io.BytesIO(data).read, target, _guard(target), name="model.tar.gz"))


def _mar(data):
    def extract(target):
        packed = target.parent / "m.mar"
        packed.write_bytes(data)
        unpack_archive(packed, target, _guard(target))

    _unpacked(extract)


def _zip(compression):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as packed:
        for name, content in (("MAR-INF/MANIFEST.json", b"{}"), ("handler.py", b"x = 1\n" * 50), ("sub/w", b"w" * 300)):
            packed.writestr(zipfile.ZipInfo(name), content, compression)
    return out.getvalue()


TARGETS = (
    Target(
        "tar",
        _tar,
        (FetchFailed,),
        lambda: {
            **{mode: archive(_MEMBERS, mode=mode) for mode in ("w", "w:gz", "w:bz2", "w:xz")},
            "pax": archive([*_MEMBERS, file("é" * 60)], mode="w"),
        },
        words=(
            b"../x\0",
            b"/etc/x\0",
            b"ustar\x0000",
            b"0" * 11,
            b"77777777777",
            b"\x80" + b"\xff" * 11,
            b"12 path=../x\n",
        ),
        suite_cases=300,
        limit_s=4,
    ),
    Target(
        "mar",
        _mar,
        (FetchFailed,),
        lambda: {
            "deflated": _zip(zipfile.ZIP_DEFLATED),
            "stored": _zip(zipfile.ZIP_STORED),
        },
        words=(b"PK\x01\x02", b"PK\x05\x06", b"../x", b"C:\\x", b"\x0c\x00", b"\x0e\x00", b"\xff\xff\xff\xff"),
        suite_cases=300,
        limit_s=4,
    ),
)
