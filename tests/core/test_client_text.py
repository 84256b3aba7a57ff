"""Text of clients in errors and in the log."""

import errno
import io
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.client_text import escaped, reason_of, shortened
from headrace.core.telemetry import get_logger, setup_logging


@given(st.text())
def test_a_quoted_text_is_one_printable_line(text):
    assert escaped(text).isprintable()
    assert len(escaped(text).splitlines()) <= 1
    assert text.isprintable() == (escaped(text) == text)


@given(st.text(max_size=2000))
def test_a_quoted_text_has_a_bounded_length(text):
    assert len(shortened(text)) <= 200 * 12 + 1


def test_a_line_end_in_a_name_is_shown_percent_encoded():
    assert escaped("a\r\nb\x00\x1b[31m\u2028") == "a%0D%0Ab%00%1B[31m%E2%80%A8"


def test_a_clients_text_cannot_write_lines_of_the_console_log():
    stream = io.StringIO()
    setup_logging(format="console", stream=stream)
    get_logger().warning("request.refused", path="/a\r\n12:00:00 [info] server.ready\x1b[2J")
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/a/b"), "No such file or directory"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 9)"), "Connection refused"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (OSError("all attempts failed"), "all attempts failed"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "it is not UTF-8"),
        (ValueError("expected a number"), "expected a number"),
    ],
)
def test_a_reason_has_neither_numbers_nor_paths_nor_addresses(error, reason):
    assert reason_of(error) == reason
