"""The files of accepted asynchronous invocations."""

from headrace.gateway.async_files import PendingFolder, PendingInvocation

from .async_parts import pending


def load(folder: PendingFolder) -> list[PendingInvocation | None]:
    return [folder.read(name) for name in folder.ids()]


def test_files_survive_a_restart_and_unreadable_ones_are_renamed(tmp_path):
    folder = PendingFolder(tmp_path / "new")
    assert load(folder) == []
    folder.save(pending(2))
    folder.save(pending(1))
    (tmp_path / "new" / "00000.json").write_bytes(b'{"id": ')
    (tmp_path / "new" / "00003.partial").write_bytes(b"half")
    assert load(folder) == [None, pending(1), pending(2)]
    assert (tmp_path / "new" / "00000.unreadable").exists()
    folder.remove("00001")
    folder.remove("00001")
    assert load(folder) == [pending(2)]
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0


def test_a_file_that_is_removed_while_the_folder_is_read_is_skipped(tmp_path):
    folder = PendingFolder(tmp_path)
    folder.save(pending(1))
    [name] = folder.ids()
    folder.remove(name)
    assert folder.read(name) is None


def test_a_file_that_the_disk_does_not_return_is_kept(tmp_path):
    (tmp_path / "00001.json").mkdir()
    folder = PendingFolder(tmp_path)
    assert load(folder) == [None]
    assert folder.ids() == ["00001"]
