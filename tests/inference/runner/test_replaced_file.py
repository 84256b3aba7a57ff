"""A file is replaced at the end of the block, and what a killed writer left is removed by the next one."""

import os
import subprocess
import sys

import pytest

from headrace.inference.runner.packing import replaced_file

KILLED = """
import os, sys
from pathlib import Path
from headrace.inference.runner.packing import replaced_file
with replaced_file(Path(sys.argv[1])):
    os.kill(os.getpid(), 9)
"""


def write(path, content):
    with replaced_file(path) as (handle, _):
        os.write(handle, content)


def test_the_file_has_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "folder" / "a.weights"
    write(path, b"old")
    with replaced_file(path) as (handle, temporary):
        os.write(handle, b"new")
        assert path.read_bytes() == b"old"
        assert temporary.read_bytes() == b"new"
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_block_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "a.weights"
    write(path, b"old")
    with pytest.raises(KeyboardInterrupt), replaced_file(path):
        raise KeyboardInterrupt
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == {path: b"old"}


def test_the_next_writer_removes_what_a_killed_one_left_and_keeps_what_is_being_written(tmp_path):
    path, other = tmp_path / "a.weights", tmp_path / "b.weights"
    killed = subprocess.run([sys.executable, "-P", "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -9
    (left,) = tmp_path.iterdir()

    with replaced_file(other) as (_, current):
        assert not left.exists()
        write(path, b"whole")
        assert current.exists()
    assert sorted(tmp_path.iterdir()) == [path, other]
