import io
from threading import Event

import pytest
from rich.console import Console

from headrace.tools.cli.progress import BETWEEN_LINES_S, BarProgress, LineProgress, StageLines, showing_stage, watching
from tests.waiting import WAIT_S


def test_a_log_gets_a_line_when_a_task_begins_and_one_when_it_ends(capsys) -> None:
    progress = LineProgress()
    for completed in range(11):
        progress("Packing weights", completed * 2**20, 10 * 2**20)
    assert capsys.readouterr().err.splitlines() == ["Packing weights: 10 MiB …", "Packing weights: done"]


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_log_gets_a_line_every_few_seconds_of_a_long_task(capsys) -> None:
    clock = Clock()
    progress = LineProgress(clock=clock)
    for layer in range(31):
        progress("Quantizing", layer, 30, "layers")
        clock.now_s += BETWEEN_LINES_S / 2.5
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [
        "Quantizing: 30 layers …",
        "Quantizing: 3 of 30 layers, 6 s",
        "Quantizing: 6 of 30 layers, 12 s",
    ]
    assert (lines[-1], len(lines)) == ("Quantizing: done", 11)


def test_a_log_gets_a_line_of_a_task_that_reports_nothing_for_long(capsys) -> None:
    clock = Clock()
    progress = LineProgress(clock=clock)
    progress("Packing weights", 0, 4, "parts")
    progress("Downloading", 1, 4, "parts")
    progress("Packing weights", 1, 4, "parts")
    clock.now_s += BETWEEN_LINES_S
    progress.tell()
    progress.tell()
    assert capsys.readouterr().err.splitlines()[2:] == [
        "Packing weights: 1 of 4 parts, 5 s",
        "Downloading: 1 of 4 parts, 5 s",
    ]
    progress.stop()
    clock.now_s += BETWEEN_LINES_S
    progress.tell()
    assert capsys.readouterr().err == ""


def test_a_log_says_what_goes_on_without_a_task(capsys) -> None:
    clock = Clock()
    progress = LineProgress(idle="Loading smollm2", clock=clock)
    clock.now_s += 1
    progress.tell()
    progress("Packing weights", 1, 4, "parts")
    progress("Packing weights", 4, 4, "parts")
    clock.now_s += BETWEEN_LINES_S
    progress.tell()
    progress.stop()
    assert capsys.readouterr().err.splitlines() == [
        "Loading smollm2, 1 s",
        "Packing weights: 4 parts …",
        "Packing weights: done",
        "Loading smollm2, 5 s",
    ]


@pytest.mark.parametrize(
    ("is_counter", "expected"),
    [
        (False, ["chat: 1", "chat: 2", "chat: 2, 5 s", "chat: 3"]),
        (True, ["chat: 1", "chat: 2, 6 s"]),
    ],
)
def test_a_stage_is_repeated_while_it_lasts_and_a_counter_is_not_printed_each_time(
    is_counter, expected, capsys
) -> None:
    clock = Clock()
    show = StageLines("chat", is_counter=is_counter, clock=clock)
    for stage, pause_s in (("1", 1.0), ("2", 1.0), ("2", BETWEEN_LINES_S - 1), ("2", 1.0), ("3", 0.0)):
        show(stage)
        clock.now_s += pause_s
    assert capsys.readouterr().err.splitlines() == expected


def test_a_call_that_blocks_shows_what_it_waits_for(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.tools.cli.progress._PATIENCE_S", 0.001)
    is_over = Event()
    stages = ["0 of 1 ready", None, "1 of 1 ready"]

    def look() -> str | None:
        if len(stages) == 1:
            is_over.set()
        return stages.pop(0) if stages else None

    with watching("chat", look):
        assert is_over.wait(WAIT_S)
    assert capsys.readouterr().err.splitlines() == ["chat: 0 of 1 ready", "chat: 1 of 1 ready"]


def test_a_wait_that_ends_early_shows_nothing_more(capsys) -> None:
    with watching("chat", lambda: "waiting") as end:
        end()
        print("the answer")
    assert capsys.readouterr() == ("the answer\n", "")


def test_a_note_stays_above_the_status_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr", terminal)
    with showing_stage("chat") as show:
        show("Creating, 0 of 1 ready")
        show.note("Note: [4] vCPUs")
    assert "Note: [4] vCPUs\n" in terminal.getvalue()


def test_stages_and_notes_are_lines_of_a_log(capsys) -> None:
    with showing_stage("chat") as show:
        for stage in ("Creating", "Creating", "InService"):
            show(stage)
        show.note("Note: shared")
    assert capsys.readouterr().err.splitlines() == ["chat: Creating", "chat: InService", "Note: shared"]


def test_a_task_that_is_already_done_prints_nothing(capsys) -> None:
    LineProgress()("Downloading", 5, 5)
    assert capsys.readouterr().err == ""


def test_bars_show_amounts_and_disappear_when_all_tasks_are_done() -> None:
    file = io.StringIO()
    bars = BarProgress(Console(file=file, force_terminal=True, width=100))
    bars("prompts", 1, 4, "prompts")
    bars("prompts", 4, 4, "prompts")
    assert "4 of 4 prompts" in file.getvalue()
    assert bars._bars is None
    bars.stop()


def test_work_without_tasks_shows_what_it_is_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.tools.cli.progress._PATIENCE_S", 0.001)
    is_shown = Event()

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            if "Loading smollm2" in text:
                is_shown.set()
            return super().write(text)

    file = Screen()
    bars = BarProgress(Console(file=file, force_terminal=True, width=100), idle="Loading smollm2")
    assert is_shown.wait(WAIT_S)
    bars("Packing weights", 1, 4)
    assert "Packing weights" in file.getvalue()
    bars("Packing weights", 4, 4)
    bars.stop()
    assert bars._timer is None
