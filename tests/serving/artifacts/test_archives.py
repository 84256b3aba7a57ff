"""Archives are unpacked completely, or refused with one clear error and nothing written outside."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.artifacts.archives import safe_path, unpack
from headrace.serving.artifacts.fetch_bounds import Deadline, DiskFull, FetchFailed, Guard
from tests.serving.artifacts.archive_maker import DEVICE, PIPE, archive, file, folder, header, link, special

MIB = 1 << 20


def unpacked(tmp_path: Path, packed: bytes, **bounds) -> dict[str, bytes]:
    """Unpack into a folder that has a neighbour; return the files by name."""
    target = tmp_path / "in" / "target"
    target.mkdir(parents=True)
    bounds = {"reserve_bytes": 0, "deadline": Deadline(60), **bounds}
    unpack(io.BytesIO(packed).read, target, Guard(folder=target, **bounds), name="model.tar.gz")
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


def refused(tmp_path: Path, packed: bytes, **bounds) -> str:
    """Return the error of an archive that must be refused, with nothing written outside of the target."""
    with pytest.raises(FetchFailed) as caught:
        unpacked(tmp_path, packed, **bounds)
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["target"]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    return str(caught.value)


PROPERTIES = file("./serving.properties", b"engine=MPI\n")
GOOD = [folder("./"), PROPERTIES, folder("sub"), file("sub/deep/weights", b"w" * 5000)]


@pytest.mark.parametrize("mode", ["w:gz", "w", "w:bz2", "w:xz"])
def test_all_supported_formats_are_unpacked(tmp_path, mode) -> None:
    files = unpacked(tmp_path, archive(GOOD, mode=mode))
    assert files == {"serving.properties": b"engine=MPI\n", "sub/deep/weights": b"w" * 5000}


@pytest.mark.parametrize("padding", [0, 4])
def test_an_xz_archive_may_have_several_streams(tmp_path, padding) -> None:
    plain = archive(GOOD, mode="w")
    packed = lzma.compress(plain[:700]) + bytes(padding) + lzma.compress(plain[700:]) + bytes(padding)
    assert unpacked(tmp_path, packed)["sub/deep/weights"] == b"w" * 5000


def test_an_xz_archive_with_a_large_dictionary_is_refused(tmp_path) -> None:
    filters = [
        {"id": lzma.FILTER_LZMA2, "dict_size": 1 << 28, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3, "nice_len": 8}
    ]
    packer = lzma.LZMACompressor(filters=filters)
    said = refused(tmp_path, packer.compress(archive(GOOD, mode="w")) + packer.flush())
    assert "Memory usage limit exceeded" in said


def test_an_xz_archive_that_ends_early_is_refused(tmp_path) -> None:
    packed = lzma.compress(archive(GOOD, mode="w"))
    assert "it ends within its xz stream" in refused(tmp_path, packed[:-20])


def test_reads_may_return_any_number_of_bytes(tmp_path) -> None:
    stream = io.BytesIO(archive(GOOD))
    unpack(lambda _: stream.read(7), tmp_path, Guard(folder=tmp_path, deadline=Deadline(60)), name="m")
    assert (tmp_path / "sub/deep/weights").read_bytes() == b"w" * 5000


def test_only_the_executable_bit_of_modes_is_kept(tmp_path) -> None:
    unpacked(tmp_path, archive([file("run", mode=0o4777), file("data", mode=0o200)]))
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (tmp_path / "in/target").iterdir()}
    assert modes == {"run": 0o755, "data": 0o644}


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "..", "a/..", "./../evil"])
def test_names_that_lead_outside_are_refused(tmp_path, name) -> None:
    said = refused(tmp_path, archive([file("good"), file(name)]))
    assert repr(name) in said
    assert "tar czf" in said


@pytest.mark.parametrize(
    "members",
    [
        [link("a", "/etc/passwd")],
        [link("a", "../../evil")],
        [link("a", "nothing")],
        [link("a", "a")],
        [link("dot", "."), link("up", "dot/../..")],
        [folder("d"), link("d/l", ".."), link("out", "d/l/..")],
        [file("f"), link("a", "/etc/passwd", is_hard=True)],
        [file("f"), link("a", "../evil", is_hard=True)],
        [link("a", "nothing", is_hard=True)],
        [link("a", "/etc", is_hard=False), file("a/evil")],
        [link("a", ".."), link("b", "a", is_hard=True)],
    ],
)
def test_links_that_lead_outside_or_nowhere_are_refused(tmp_path, members) -> None:
    assert "model.tar.gz" in refused(tmp_path, archive(members))


def test_links_inside_are_kept(tmp_path) -> None:
    members = [
        link("early", "sub/weights"),
        file("sub/weights", b"w"),
        link("sub/up", "../other"),
        link("hard", "sub/weights", is_hard=True),
        file("other", b"o"),
    ]
    files = unpacked(tmp_path, archive(members))
    assert files == {"early": b"w", "sub/weights": b"w", "sub/up": b"o", "hard": b"w", "other": b"o"}


def test_a_file_is_never_written_through_a_link(tmp_path) -> None:
    said = refused(tmp_path, archive([folder("real"), link("door", "real"), file("door/evil")]))
    assert "model.tar.gz" in said


@pytest.mark.parametrize("kind", [DEVICE, PIPE])
def test_devices_and_pipes_are_refused(tmp_path, kind) -> None:
    assert "device or pipe" in refused(tmp_path, archive([special("d", kind)]))


def test_a_later_member_replaces_an_earlier_one_of_the_same_name(tmp_path) -> None:
    members = [file("a", b"1"), link("b", "a", is_hard=True), file("a", b"2")]
    assert unpacked(tmp_path, archive(members)) == {"a": b"2", "b": b"1"}


def test_a_link_replaces_a_file_and_another_link_of_the_same_name(tmp_path) -> None:
    members = [file("a", b"1"), file("to", b"2"), link("b", "a"), link("a", "to"), link("b", "to")]
    assert unpacked(tmp_path, archive(members)) == {"a": b"2", "to": b"2", "b": b"2"}


def test_a_name_cannot_be_a_file_and_a_folder(tmp_path) -> None:
    assert "'a/b'" in refused(tmp_path, archive([file("a"), file("a/b")]))


@pytest.mark.parametrize(
    "packed",
    [b"", b"no archive" * 100, b"PK\x03\x04zip", b"GGUF....", b"\x1f\x8bbroken", gzip.compress(b"not a tar" * 99)],
    ids=["empty", "text", "zip", "gguf", "broken gzip", "gzip of no tar"],
)
def test_other_formats_are_refused(tmp_path, packed) -> None:
    assert "tar.gz archive" in refused(tmp_path, packed)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_an_archive_that_is_cut_off_is_refused(tmp_path, share) -> None:
    packed = archive([file(f"f{number}", os.urandom(3000)) for number in range(20)])
    assert "not a complete tar.gz" in refused(tmp_path, packed[: int(len(packed) * share)])


def test_an_archive_with_a_flipped_bit_is_refused(tmp_path) -> None:
    packed = bytearray(archive([file("f", os.urandom(30_000))]))
    packed[len(packed) // 2] ^= 1
    assert "not a complete tar.gz" in refused(tmp_path, bytes(packed))


def test_too_many_files_are_refused(tmp_path) -> None:
    packed = archive([file(f"f{number}") for number in range(30)])
    assert "more than 20 files" in refused(tmp_path, packed, max_files=20)


def test_folders_count_as_files(tmp_path) -> None:
    assert "more than 20 files" in refused(tmp_path, archive([file("a/" * 30 + "f")]), max_files=20)


def test_a_full_disk_is_one_clear_error(tmp_path) -> None:
    packed = archive([file("weights", b"w" * MIB)])
    with pytest.raises(DiskFull, match="1 MiB more are needed, 500 KiB are free"):
        unpacked(tmp_path, packed, free_bytes=lambda _: 500 * 1024)


def test_a_file_that_claims_to_be_huge_is_refused_before_it_is_written(tmp_path) -> None:
    header = tarfile.TarInfo("weights")
    header.size = 1 << 50
    said = refused(tmp_path, gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(2048)))
    assert "disk" in said
    assert "full" in said


def test_a_header_that_needs_much_memory_is_refused(tmp_path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    assert "a header of" in refused(tmp_path, gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(4096)))


@pytest.mark.parametrize(
    "record",
    [b"0" * 500_000 + b" a=b\n", b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n20 GNU.sparse.name=a\n"],
    ids=["digits", "holes"],
)
def test_an_extended_header_that_takes_long_to_read_is_refused(record, tmp_path) -> None:
    # Python before 3.11.10 searched the digits for 8 s, and made 15 million holes of 262 KB: 18 s and 2.7 GB.
    content = header("x", record, kind=tarfile.XHDTYPE) + header("w", b"15000000\n" + b"0\n" * 5000)
    assert "is not a complete tar.gz archive" in refused(tmp_path, gzip.compress(content))


def test_a_sparse_file_is_refused_by_name(tmp_path) -> None:
    assert "'w' is a sparse file" in refused(tmp_path, header("w", kind=tarfile.GNUTYPE_SPARSE))


DAMAGED = {
    "a negative size": header("w", size=b"\xff" * 12),
    "a size without digits": header("w", size=b"z" * 12),
    "a huge size of a file that is left out": header("._w", size=b"\x80" + b"\xff" * 11),
    "a huge size of a sparse file": header("w", kind=tarfile.GNUTYPE_SPARSE, size=b"\x80" + b"\xff" * 11),
    "an extended header of length 0": header("x", b"0 path=y\n", kind=tarfile.XHDTYPE) + header("w"),
    "an extended header with a wrong size": header("x", b"13 size=-512\n", kind=tarfile.XHDTYPE) + header("w"),
    "a sparse file without a map": header("x", b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n", kind=tarfile.XHDTYPE)
    + header("w", b"no number"),
    "a sparse map of no numbers": header("x", b"20 GNU.sparse.map=a\n", kind=tarfile.XHDTYPE) + header("w"),
    "extended headers one in another": header("x", kind=tarfile.XHDTYPE) * 2000,
    "long names one in another": header("x", b"n", kind=tarfile.GNUTYPE_LONGNAME) * 2000,
    "an extended header at the end": header("x", b"9 path=y\n", kind=tarfile.XHDTYPE),
    "no header": os.urandom(4096),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=lambda pack: pack.__name__
)
def test_a_damaged_archive_is_one_clear_error_that_names_it(tmp_path, content, compress) -> None:
    assert "model.tar.gz" in refused(tmp_path, compress(content + bytes(1024)))


def test_extended_headers_count_as_content(tmp_path) -> None:
    """They are no files, but take memory and time."""
    bomb = b"".join(
        header("g", b"1048576 %08d=" % n + b"a" * (MIB - 18) + b"\n", kind=tarfile.XGLTYPE) for n in range(9)
    )
    assert "more than 100 times its size" in refused(tmp_path, gzip.compress(bomb), unrationed_bytes=MIB)


def test_an_archive_bomb_is_refused(tmp_path) -> None:
    said = refused(tmp_path, archive([file("zeros", bytes(30 * MIB))]), unrationed_bytes=MIB)
    assert "more than 100 times its size" in said


def test_unpacking_ends_at_the_deadline(tmp_path) -> None:
    times = iter([0.0] + [1.0] * 5 + [99.0] * 1000)
    deadline = Deadline(10, now_s=lambda: next(times))
    packed = archive([file(f"f{number}") for number in range(30)])
    assert "not downloaded within 10 s" in refused(tmp_path, packed, deadline=deadline)


@given(st.text(max_size=40))
def test_a_safe_path_never_leads_outside(name) -> None:
    try:
        path = safe_path(name, "m")
    except FetchFailed:
        return
    assert not path.is_absolute()
    assert ".." not in path.parts
    assert Path(os.path.normpath("/root" / path)).is_relative_to("/root")
