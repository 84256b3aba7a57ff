"""The recording of the README keeps when each text came and went, as a terminal would show it."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

SPEC = spec_from_file_location("recording", Path(__file__).parent.parent / "scripts" / "recording.py")
recording = sys.modules["recording"] = module_from_spec(SPEC)
SPEC.loader.exec_module(recording)


def shown(*events: tuple[float, str]) -> list[tuple[int, int, str, float, float]]:
    screen = recording.Screen()
    for time_s, text in events:
        screen.write(text, time_s)
    found = recording.runs(screen.cells)
    return [(run.first.row, run.first.column, run.text, run.first.start_s, run.first.end_s) for run in found]


NEVER = float("inf")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(1, "$ ls\r\n"), (2, "a\r\n  b")], [(0, 0, "$ ls", 1, NEVER), (1, 0, "a", 2, NEVER), (2, 2, "b", 2, NEVER)]),
        ([(1, "o\x1b[1mne"), (2, "\x1b[0m\r\n")], [(0, 0, "o", 1, NEVER), (0, 1, "ne", 1, NEVER)]),
        ([(1, "⠋ go"), (2, "\r\x1b[2K⠙ go"), (3, "\r\x1b[2Kdone")], [(0, 0, "⠿ go", 1, 3), (0, 0, "done", 3, NEVER)]),
        ([(1, "up\r\n"), (2, "\x1b[1A\x1b[2Kdown")], [(0, 0, "up", 1, 2), (0, 0, "down", 2, NEVER)]),
    ],
    ids=["lines", "a style", "a spinner", "a line above"],
)
def test_texts_come_and_go_when_the_program_writes_and_erases_them(
    events: list[tuple[float, str]], expected: list[tuple[int, int, str, float, float]]
) -> None:
    assert shown(*events) == expected


def test_the_window_moves_when_a_row_below_it_begins_and_the_picture_ends_there() -> None:
    screen = recording.Screen()
    screen.write("\r\n".join(["row"] * recording.ROWS), 1)
    assert screen.scrolled == []
    screen.write("\r\nlast", 2)
    assert screen.scrolled == [(2, 1)]
    picture = recording.svg(screen, 3, "A & B")
    assert f".w{{transform:translateY(-{recording.LINE_HEIGHT}px)}}" in picture
    assert "A &amp; B" in picture
