"""Backups of a data folder: what they have, what damages them, and what is refused."""

import contextlib
import gzip
import io
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import SettingsError
from headrace.core.progress import no_progress
from headrace.platform.control.model.worker import WORKER, ReplicaSpec
from headrace.platform.host.access_keys import ACCESS_KEY, AccessKeySpec
from headrace.platform.host.backup import Manifest, back_up, check_backup, restore
from headrace.platform.host.folders import DataFolder
from headrace.platform.state.blobs import open_blobs
from headrace.platform.state.records import Record, readable
from headrace.platform.state.store import open_store

HERE = Path(__file__).parent
KEY = AccessKeySpec(secret="very secret", note="kept")
REPLICA = ReplicaSpec(endpoint="e", endpoint_uid="u", variant="v", revision=1, log_group="g", log_stream="s")


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = DataFolder(tmp_path / "data")
    made.make()
    with contextlib.closing(open_store(made.database)) as store:
        store.create(ACCESS_KEY, "KEY", spec=KEY)
        store.create(WORKER, "w", spec=REPLICA)
    made.images.write_text("[images]\n")
    made.jumpstart.write_text("a = { model = 'b' }\n")
    (made.objects / "data" / "empty").mkdir(parents=True)
    (made.objects / "data" / "1.dat").write_bytes(bytes(range(256)) * 9000)
    (made.objects / "log.txt").write_text("of a process")
    with contextlib.closing(open_blobs(made.database, made.blobs)) as blobs:
        blobs.put("invocations", "1", b"{}", b"body")
    return made


@pytest.fixture
def other(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path / "elsewhere" / "data")


def saved(folder: DataFolder, *, has_objects: bool = True, is_replacing: bool = False) -> Path:
    target = folder.root.parent / "backup.tar.gz"
    back_up(folder, folder.database, target, has_objects=has_objects, is_replacing=is_replacing, progress=no_progress)
    return target


def restored(folder: DataFolder, source: Path, *, is_replacing: bool = False) -> Manifest:
    return restore(folder, folder.database, source, is_replacing=is_replacing, progress=no_progress).manifest


def keys_of(folder: DataFolder) -> list[Record[Any, Any]]:
    with contextlib.closing(open_store(folder.database)) as store:
        assert store.list(WORKER) == []
        return readable(store.list(ACCESS_KEY))


def blobs_of(folder: DataFolder) -> dict[str, Sequence[bytes]]:
    with contextlib.closing(open_blobs(folder.database, folder.blobs)) as blobs:
        return {key: blobs.parts("invocations", key) for key in blobs.keys("invocations")}


def test_all_of_a_platform_but_its_processes_is_restored_elsewhere(folder: DataFolder, other: DataFolder) -> None:
    manifest = restored(other, saved(folder))
    assert manifest.kinds == {"access-key": 1, "worker": 1}
    (key,) = keys_of(other)
    assert key.spec == KEY
    assert other.images.read_text() == "[images]\n"
    assert other.jumpstart.read_text() == folder.jumpstart.read_text()
    assert (other.objects / "data" / "1.dat").read_bytes() == (folder.objects / "data" / "1.dat").read_bytes()
    assert not (other.objects / "log.txt").exists()
    assert blobs_of(other) == {"1": [b"{}", b"body"]}
    assert list(other.root.glob(".*")) == []


def test_the_file_is_for_its_owner_and_is_not_replaced_unasked(folder: DataFolder) -> None:
    target = saved(folder, has_objects=False)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    before = target.read_bytes()
    with pytest.raises(SettingsError, match=r"exists.*--replace"):
        saved(folder)
    assert target.read_bytes() == before
    saved(folder, is_replacing=True)
    assert target.read_bytes() != before
    assert [path.name for path in target.parent.iterdir() if path.name.startswith(".")] == []


def test_records_and_objects_that_are_there_are_replaced_only_when_asked(folder: DataFolder) -> None:
    target = saved(folder)
    (folder.objects / "data" / "2.dat").write_bytes(b"later")
    with contextlib.closing(open_store(folder.database)) as store:
        store.create(ACCESS_KEY, "LATER", spec=KEY)
    with contextlib.closing(open_blobs(folder.database, folder.blobs)) as blobs:
        blobs.put("invocations", "2", b"later")
    with pytest.raises(SettingsError, match=r"s3 is not empty.*--replace"):
        restored(folder, target)
    assert (folder.objects / "data" / "2.dat").exists()
    restored(folder, target, is_replacing=True)
    assert [key.name for key in keys_of(folder)] == ["KEY"]
    assert list(blobs_of(folder)) == ["1"]
    assert not (folder.objects / "data" / "2.dat").exists()


def test_a_running_platform_is_refused_except_for_a_copy_of_its_records(folder: DataFolder) -> None:
    target = saved(folder, has_objects=False)
    with folder.locked():
        saved(folder, has_objects=False, is_replacing=True)
        with pytest.raises(SettingsError, match="headrace down --data-dir"):
            saved(folder, is_replacing=True)
        with pytest.raises(SettingsError, match="headrace down --data-dir"):
            restored(folder, target, is_replacing=True)
    assert check_backup(target, no_progress).manifest.has_objects is False


def test_a_platform_without_objects_or_records_is_refused(other: DataFolder, folder: DataFolder) -> None:
    other.make()
    with pytest.raises(SettingsError, match=r"records\.sqlite does not exist"):
        saved(other, has_objects=False)
    with pytest.raises(SettingsError, match="There are no objects"):
        saved(other)
    assert list(folder.root.parent.glob("*.tar.gz")) == []


def test_a_damaged_file_changes_nothing(folder: DataFolder, other: DataFolder) -> None:
    target = saved(folder)
    whole = target.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-40], b"", b"no archive", gzip.compress(b"no tar" * 1000)):
        target.write_bytes(damaged)
        with pytest.raises(SettingsError, match="is not a complete backup of Headrace"):
            restored(other, target)
    for name, content in (("records.jsonl", b"{}\n"), ("images.toml", b"other"), ("objects/more", b"added")):
        target.write_bytes(changed(whole, **{name: content}))
        with pytest.raises(SettingsError, match=f"is damaged: the checksum of {name} is wrong"):
            restored(other, target)
    target.write_bytes(changed(whole, **{"../outside": b""}))
    with pytest.raises(SettingsError, match="does not belong into a backup"):
        restored(other, target)
    assert sorted(path.name for path in other.root.iterdir()) == ["lock", "records.sqlite.lock"]
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        restored(other, target.with_name("none"))


def test_a_backup_of_a_newer_headrace_is_refused_with_its_version(folder: DataFolder, other: DataFolder) -> None:
    target = saved(folder)
    whole = target.read_bytes()
    target.write_bytes(changed(whole, **{"manifest.json": b'{"format": 2, "headrace": "9.1", "new": 1}'}))
    with pytest.raises(SettingsError, match=r"format 2, written by Headrace 9\.1; expected at most 1"):
        restored(other, target)
    with contextlib.closing(open_store(folder.database)) as store, store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE headrace_records SET schema_version = 99 WHERE kind = 'access-key'")
    with pytest.raises(SettingsError, match="access-key with schema version 99"):
        saved(folder, is_replacing=True)


def test_what_an_interrupted_restore_left_is_removed(folder: DataFolder, other: DataFolder) -> None:
    (other.root / ".restore-left").mkdir(parents=True)
    restored(other, saved(folder))
    assert list(other.root.glob(".restore-*")) == []


def test_an_unreadable_record_is_restored_and_named(folder: DataFolder, other: DataFolder) -> None:
    with contextlib.closing(open_store(folder.database)) as store, store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE headrace_records SET spec = '[]' WHERE kind = 'access-key'")
    (unreadable,) = check_backup(saved(folder), no_progress).unreadable
    assert "Expected `object`" in unreadable.reason


@pytest.mark.parametrize("source", sorted(HERE.glob("backups/*.tar.gz")), ids=lambda path: path.name)
def test_a_backup_of_an_earlier_version_is_restored(source: Path, other: DataFolder) -> None:
    contents = restore(other, other.database, source, is_replacing=False, progress=no_progress)
    assert contents.unreadable == []
    assert contents.manifest.kinds["endpoint"] == 7
    assert (other.objects / "data" / "1.dat").read_bytes() == b"an object"
    assert len(keys_of(other)) == 1


def changed(archive: bytes, **contents: bytes) -> bytes:
    """An archive with some members replaced or added."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as new:
        for name, content in {**dict(members_of(archive)), **contents}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return output.getvalue()


def members_of(archive: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as old:
        for member in old:
            content = old.extractfile(member)
            assert content is not None
            yield member.name, content.read()
