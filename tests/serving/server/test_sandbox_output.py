"""The output of a server in a sandbox."""

import os
import pty
from pathlib import Path

from headrace.serving.server.sandbox_output import finish, relay

HOSTILE = b"\x1b]52;c;ZWNobw==\x07ok\r\n\xc2\x9b6n\xff\ttext \xe2\x82\xac\n"
"""It writes the clipboard and asks a terminal for its cursor, which is an answer on the operator's input."""


def relayed(target: int) -> None:
    read, write = os.pipe()
    with open(read, "rb") as source, open(write, "wb", buffering=0) as sink:  # noqa: PTH123 -- descriptors
        threads = relay([(source, target)])
        sink.write(HOSTILE[:-8])
        sink.write(HOSTILE[-8:])
        sink.close()
        finish(threads)
        assert not any(thread.is_alive() for thread in threads)


def test_a_terminal_gets_no_control_characters_and_a_file_what_was_written(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    with (tmp_path / "log").open("wb") as file:
        relayed(slave)
        relayed(file.fileno())
    shown = os.read(master, 1000).decode()
    for descriptor in (master, slave):
        os.close(descriptor)
    assert (tmp_path / "log").read_bytes() == HOSTILE
    assert shown.replace("\r\n", "\n") == "�]52;c;ZWNobw==�ok�\n�6n�\ttext €\n"


def test_output_that_cannot_be_written_does_not_stop_the_server() -> None:
    with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
        relayed(full.fileno())
