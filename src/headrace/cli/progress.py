"""Progress bars on stderr for long work, or lines if stderr is not a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

import click

from headrace.core.progress import Progress
from headrace.core.sizes import format_size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


class BarProgress:
    """Draws a bar for each task; the bars disappear when all are done, and at the end of the `with` block."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, task: str, completed: int, total: int, unit: str = "bytes") -> None:
        """Report that `completed` of `total` units of `task` are done."""
        if self._bars is None:
            self._bars = _make_bars(self._console)
            self._bars.start()
        if task not in self._tasks:
            self._tasks[task] = self._bars.add_task(task, total=total, amount="")
        shown = f"{_number(completed, unit)} of {_amount(total, unit)}"
        self._bars.update(self._tasks[task], completed=completed, total=total, amount=shown)
        if self._bars.finished:
            self.stop()

    def stop(self) -> None:
        """Remove the bars."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
            self._tasks = {}


class LineProgress:
    """Prints a line when a task starts and when it ends, for logs."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    def __call__(self, task: str, completed: int, total: int, unit: str = "bytes") -> None:
        """Report that `completed` of `total` units of `task` are done."""
        if task not in self._begun and completed < total:
            self._begun.add(task)
            click.echo(f"{task}: {_amount(total, unit)} …", err=True)
        elif completed >= total and task in self._begun:
            self._begun.discard(task)
            click.echo(f"{task}: done", err=True)


@contextmanager
def showing_progress() -> Iterator[Progress]:
    """Yield a `Progress` suited to stderr."""
    if not sys.stderr.isatty():
        yield LineProgress()
        return
    from rich.console import Console

    bars = BarProgress(Console(stderr=True))
    try:
        yield bars
    finally:
        bars.stop()


ShowStage = Callable[[str], None]
_SPINNER_COLUMNS = 4
"""Columns of the spinner, of the spaces beside it, and the last one of the terminal."""
_PATIENCE_S = 1.0
"""Time for which a call may block before something is shown, and between two looks at what it waits for."""


@contextmanager
def showing_stage(name: str) -> Iterator[ShowStage]:
    """Show the stage of a wait as a status line on a terminal, and as a line for each change elsewhere."""
    if not sys.stderr.isatty():
        last: list[str] = []

        def show_change(stage: str) -> None:
            if last[-1:] != [stage]:
                last[:] = [stage]
                click.echo(f"{name}: {stage}", err=True)

        yield show_change
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    with console.status(escape(name)) as status:

        def show(stage: str) -> None:
            room = max(console.width - len(name) - _SPINNER_COLUMNS, 1)  # one line: a second one is left behind
            short = stage if len(stage) <= room else f"{stage[: room - 1]}…"
            status.update(f"[bold]{escape(name)}[/] {escape(short)}")

        yield show


@contextmanager
def watching(name: str, look: Callable[[], str | None]) -> Iterator[None]:
    """Show what a call that blocks this thread waits for, as another thread finds it by `look`, after a second."""
    is_over = Event()

    def watch() -> None:
        if is_over.wait(_PATIENCE_S):
            return
        with showing_stage(name) as show:
            while not is_over.is_set():
                if stage := look():
                    show(stage)
                is_over.wait(_PATIENCE_S)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _amount(number: int, unit: str) -> str:
    return _number(number, unit) if unit == "bytes" else f"{_number(number, unit)} {unit}"


def _number(number: int, unit: str) -> str:
    return format_size(number) if unit == "bytes" else f"{number:,}"


def _make_bars(console: "Console") -> "Bars":
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
    )
    return Bars(*columns, console=console, transient=True)
