import json

import pytest

from headrace.tools.cli.logs import LogLines

EVENT = {"event": "server.ready", "level": "info", "timestamp": "2026-11-26T20:29:20.5Z", "model": "smollm2"}


def formatted(message: str, *, has_time: bool = False) -> str:
    return LogLines(is_colored=False, has_time=has_time).format(message)


def test_an_event_is_shown_as_the_console_log_shows_it() -> None:
    line = formatted(json.dumps(EVENT))
    assert line.split() == ["[info", "]", "server.ready", "model=smollm2"]
    assert formatted(json.dumps(EVENT), has_time=True).split()[1:] == line.split()


def test_an_exception_keeps_its_lines() -> None:
    line = formatted(json.dumps(EVENT | {"level": "error", "exception": "Traceback:\n  a\x1b[0m"}))
    assert line.endswith("Traceback:\n  a\ufffd[0m")


@pytest.mark.parametrize(
    "line", ["plain text", "{not JSON", "[1]", '{"event": "x"}', '{"message": "of another program"}']
)
def test_a_line_of_another_program_is_unchanged(line: str) -> None:
    assert formatted(line) == line


def test_no_line_moves_the_cursor() -> None:
    assert "\x1b" not in formatted(json.dumps(EVENT | {"model": "a\x1b[2J\nb"})) + formatted("a\x1b[2J")
    assert formatted(json.dumps(EVENT | {"model": "a\nb"})).count("\n") == 0
