"""Logs that grow too large lose their beginning, and their writers continue at the end."""

import fcntl
from pathlib import Path

from headrace.core.log_files import trim_log


def log_of(folder: Path) -> Path:
    path = folder / "log.txt"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    return path


def test_a_log_is_cut_at_the_end_of_a_line_and_its_writer_continues(tmp_path: Path) -> None:
    path, cuts = log_of(tmp_path), []
    size = path.stat().st_size
    with path.open("ab", buffering=0) as writer:
        assert trim_log(path, max_bytes=1000, kept_bytes=100, note_cut=cuts.append)
        writer.write(b"after\n")
    lines = path.read_bytes().splitlines()
    assert lines[-2:] == [b"line 999", b"after"]
    assert all(line.startswith(b"line ") for line in lines[:-1])
    assert cuts == [size - path.stat().st_size + len(b"after\n")]


def test_a_small_log_and_one_that_does_not_exist_are_left_alone(tmp_path: Path) -> None:
    path = log_of(tmp_path)
    content = path.read_bytes()
    assert not trim_log(path, max_bytes=len(content))
    assert not trim_log(tmp_path / "nothing", max_bytes=0)
    assert not trim_log(path / "below a file", max_bytes=0)
    assert path.read_bytes() == content


def test_a_log_that_another_process_is_cutting_is_left_to_it(tmp_path: Path) -> None:
    path = log_of(tmp_path)
    content = path.read_bytes()
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not trim_log(path, max_bytes=1000, kept_bytes=100)
    assert path.read_bytes() == content
    assert trim_log(path, max_bytes=1000, kept_bytes=100)
