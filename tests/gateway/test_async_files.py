"""The files of accepted asynchronous invocations."""

from headrace.gateway.async_files import PendingFolder

from .async_parts import pending


def test_files_survive_a_restart_and_unreadable_ones_are_renamed(tmp_path):
    folder = PendingFolder(tmp_path / "new")
    assert list(folder.load()) == []
    folder.save(pending(2))
    folder.save(pending(1))
    (tmp_path / "new" / "00000.json").write_bytes(b'{"id": ')
    (tmp_path / "new" / "00003.partial").write_bytes(b"half")
    assert list(folder.load()) == [pending(1), pending(2)]
    assert (tmp_path / "new" / "00000.unreadable").exists()
    folder.remove("00001")
    folder.remove("00001")
    assert list(folder.load()) == [pending(2)]
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
