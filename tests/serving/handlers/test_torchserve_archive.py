"""Archives of TorchServe, good and hostile."""

import os
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.serving.artifacts.fetch_bounds import FetchFailed
from headrace.serving.handlers.torchserve_archive import is_archive, unpack_archive
from tests.serving.artifacts.archive_maker import archive as tar_of
from tests.serving.artifacts.archive_maker import file as tar_file


def write_zip(path: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_a_mar_is_unpacked_with_its_folders(tmp_path: Path, target: Path) -> None:
    archive = write_zip(tmp_path / "m.mar", ("service.py", b"x = 1"), ("MAR-INF/MANIFEST.json", b"{}"), ("a/b/c", b"d"))

    assert is_archive(archive)
    assert unpack_archive(archive, target) == target
    assert (target / "service.py").read_bytes() == b"x = 1"
    assert (target / "a" / "b" / "c").read_bytes() == b"d"


def test_a_tgz_is_unpacked_to_its_only_folder(tmp_path: Path, target: Path) -> None:
    (tmp_path / "service.py").write_text("x = 1")
    with tarfile.open(tmp_path / "noop.tar.gz", "w:gz") as file:
        file.add(tmp_path / "service.py", "noop/service.py")

    assert unpack_archive(tmp_path / "noop.tar.gz", target) == target / "noop"


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "..\\evil"])
def test_a_member_outside_of_the_folder_is_refused(tmp_path: Path, target: Path, name: str) -> None:
    archive = write_zip(tmp_path / "m.mar", (name, b"x"))

    with pytest.raises(FetchFailed, match="outside of the model's folder"):
        unpack_archive(archive, target)
    assert not list(tmp_path.rglob("evil"))


def test_a_link_is_refused(tmp_path: Path, target: Path) -> None:
    member = zipfile.ZipInfo("link")
    member.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "m.mar", "w") as file:
        file.writestr(member, "/etc/passwd")

    with pytest.raises(FetchFailed, match="contains the link 'link'"):
        unpack_archive(tmp_path / "m.mar", target)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_compression_that_torchserve_does_not_read_is_refused(tmp_path: Path, target: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "m.mar", "w", method) as file:
        file.writestr("a", b"1" * 100)

    with pytest.raises(FetchFailed, match=f"'a' in compression method {method}; expected deflate"):
        unpack_archive(tmp_path / "m.mar", target)


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path, target: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive = write_zip(tmp_path / "m.mar", ("a", b"1"), ("a", b"2"))

    with pytest.raises(FetchFailed):
        unpack_archive(archive, target)


def said(archive: Path, target: Path) -> str:
    """Return the error of an archive, or its name if it is unpacked."""
    try:
        unpack_archive(archive, target)
    except FetchFailed as error:
        return str(error)
    return archive.name


@pytest.mark.parametrize("suffix", [".mar", ".tgz"])
@given(st.integers(0, 5200), st.integers(0, 255), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_a_damaged_archive_is_unpacked_or_one_clear_error_that_names_it(
    tmp_path: Path, suffix: str, position: int, byte: int, is_cut: bool
) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as name:
        archive = Path(name) / f"m{suffix}"
        if suffix == ".mar":
            content = write_zip(archive, ("a", os.urandom(5000))).read_bytes()
        else:
            content = tar_of([tar_file("a", os.urandom(5000))])
        archive.write_bytes(content[:position] + (b"" if is_cut else bytes([byte]) + content[position + 1 :]))
        target = Path(name) / "in"
        target.mkdir()
        assert archive.name in said(archive, target)


def test_a_truncated_archive_is_refused(tmp_path: Path, target: Path) -> None:
    archive = write_zip(tmp_path / "m.mar", ("a", bytes(5000)))
    content = archive.read_bytes()
    archive.write_bytes(content[:40] + b"garbage" + content[47:])

    with pytest.raises(FetchFailed):
        unpack_archive(archive, target)
