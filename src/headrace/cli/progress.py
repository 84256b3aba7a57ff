"""Progress bars on stderr for long work, or lines if stderr is not a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
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
    import sys

    if not sys.stderr.isatty():
        yield LineProgress()
        return
    from rich.console import Console

    bars = BarProgress(Console(stderr=True))
    try:
        yield bars
    finally:
        bars.stop()


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
