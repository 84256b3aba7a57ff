import io
from threading import Event

import pytest
from rich.console import Console

from headrace.cli.progress import BarProgress, LineProgress, showing_stage, watching
from tests.waiting import WAIT_S


def test_a_log_gets_a_line_when_a_task_begins_and_one_when_it_ends(capsys) -> None:
    progress = LineProgress()
    for completed in range(11):
        progress("Packing weights", completed * 2**20, 10 * 2**20)
    assert capsys.readouterr().err.splitlines() == ["Packing weights: 10 MiB …", "Packing weights: done"]


def test_a_call_that_blocks_shows_what_it_waits_for(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.progress._PATIENCE_S", 0.001)
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
    monkeypatch.setattr("headrace.cli.progress._PATIENCE_S", 0.001)
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
