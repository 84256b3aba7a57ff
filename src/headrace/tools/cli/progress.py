"""Progress bars on stderr for long work, or lines if stderr is not a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, RLock, Thread, Timer
from typing import TYPE_CHECKING

import click

from headrace.core.progress import Progress
from headrace.core.sizes import format_size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID
    from rich.status import Status

_PATIENCE_S = 1.0
"""Time for which a call may block before something is shown, and between two looks at what it waits for."""
BETWEEN_LINES_S = 5.0
"""Time between two lines of a log about the same work."""
_IDLE = ""
"""The task of work that has reported none."""
_SPINNER_COLUMNS = 4
"""Columns of the spinner, of the spaces beside it, and the last one of the terminal."""


class BarProgress:
    """
    Draws a bar for each task; the bars disappear when all are done, and at the end of the `with` block.

    `idle` is shown when a second has passed without a task; None: nothing is.
    """

    def __init__(self, console: "Console", *, idle: str | None = None) -> None:
        self._console = console
        self._idle = idle
        self._lock = RLock()
        self._timer: Timer | None = None
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._arm()

    def __call__(self, task: str, completed: int, total: int, unit: str = "bytes") -> None:
        """Report that `completed` of `total` units of `task` are done."""
        with self._lock:
            if not self._tasks:
                self.stop()
            bars = self._bars = self._bars or self._started()
            if task not in self._tasks:
                self._tasks[task] = bars.add_task(task, total=total, amount="")
            shown = f"{_number(completed, unit)} of {_amount(total, unit)}"
            bars.update(self._tasks[task], completed=completed, total=total, amount=shown)
            if bars.finished:
                self.stop()
                self._arm()

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, markup=False, highlight=False)

    def stop(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._bars is not None:
                self._bars.stop()
                self._bars = None
                self._tasks = {}

    def _arm(self) -> None:
        if self._idle is not None:
            self._timer = Timer(_PATIENCE_S, self._show_idle)
            self._timer.daemon = True
            self._timer.start()

    def _show_idle(self) -> None:
        with self._lock:
            if self._timer is None or self._bars is not None:
                return
            self._bars = self._started()
            self._bars.add_task(str(self._idle), total=None, amount="")

    def _started(self) -> "Bars":
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        task, amount = TextColumn("{task.description}"), TextColumn("{task.fields[amount]}")
        columns = (SpinnerColumn(), task, BarColumn(), amount, TimeRemainingColumn())
        bars = Bars(*columns, console=self._console, transient=True)
        bars.start()
        return bars


@dataclass(slots=True)
class _Running:
    """A task or a stage of which a line was printed."""

    began_s: float
    told_s: float
    text: str

    def tell_if_due(self, now_s: float) -> None:
        """Print the text and the time that it takes, unless the last line is recent."""
        if now_s - self.told_s >= BETWEEN_LINES_S:
            self.told_s = now_s
            click.echo(f"{self.text}, {now_s - self.began_s:.0f} s", err=True)


class LineProgress:
    """
    Prints a line when a task starts, every few seconds while it runs, and when it ends, for logs.

    `idle` is printed when a second has passed without a task; None: nothing is.
    """

    def __init__(self, *, idle: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = RLock()
        self._timer: Timer | None = None
        self._tasks: dict[str, _Running] = {}
        self._idle = idle
        self._begin_idle()

    def __call__(self, task: str, completed: int, total: int, unit: str = "bytes") -> None:
        """Report that `completed` of `total` units of `task` are done."""
        with self._lock:
            running, now_s = self._tasks.get(task), self._clock()
            text = f"{task}: {_number(completed, unit)} of {_amount(total, unit)}"
            if running is not None and completed < total:
                running.text = text
                running.tell_if_due(now_s)
            elif running is not None:
                del self._tasks[task]
                click.echo(f"{task}: done", err=True)
                if not self._tasks:
                    self._begin_idle()
            elif completed < total:
                self._tasks.pop(_IDLE, None)
                self._tasks[task] = _Running(now_s, now_s, text)
                click.echo(f"{task}: {_amount(total, unit)} …", err=True)
                self._arm(BETWEEN_LINES_S)

    def tell(self) -> None:
        """Print a line for each task that has been silent for long, and come back later."""
        with self._lock:
            if self._timer is None:
                return
            self._timer = None
            now_s = self._clock()
            for running in self._tasks.values():
                running.tell_if_due(now_s)
            if self._tasks:
                self._arm(BETWEEN_LINES_S)

    def stop(self) -> None:
        with self._lock:
            self._tasks.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _begin_idle(self) -> None:
        if self._idle is not None:
            now_s = self._clock()
            self._tasks[_IDLE] = _Running(now_s, now_s - BETWEEN_LINES_S + _PATIENCE_S, self._idle)
            self._arm(_PATIENCE_S)

    def _arm(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = Timer(delay_s, self.tell)
        self._timer.daemon = True
        self._timer.start()


@contextmanager
def showing_progress(idle: str | None = None) -> Iterator[Progress]:
    """Yield a `Progress` suited to stderr, which shows `idle` when a second passes without a task."""
    progress: BarProgress | LineProgress
    if sys.stderr.isatty():
        from rich.console import Console

        progress = BarProgress(Console(stderr=True), idle=idle)
    else:
        progress = LineProgress(idle=idle)
    try:
        yield progress
    finally:
        progress.stop()


class StageLines:
    """
    Prints a line for each stage of a wait that is new, and one every few seconds without a change.

    With `is_counter` the stage changes all the time, and is printed every few seconds only.
    """

    def __init__(self, name: str, *, is_counter: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._is_counter = is_counter
        self._clock = clock
        self._running: _Running | None = None

    def __call__(self, stage: str) -> None:
        text, now_s = f"{self._name}: {stage}", self._clock()
        if self._running is None or (text != self._running.text and not self._is_counter):
            self._running = _Running(now_s, now_s, text)
            self.note(text)
        self._running.text = text
        self._running.tell_if_due(now_s)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        click.echo(text, err=True)


class _StageStatus:
    """A status line with a spinner; notes go above it, which only its console can do."""

    def __init__(self, name: str, console: "Console", status: "Status") -> None:
        self._name = name
        self._console = console
        self._status = status

    def __call__(self, stage: str) -> None:
        from rich.markup import escape

        room = max(self._console.width - len(self._name) - _SPINNER_COLUMNS, 1)  # one line: a second one is left behind
        short = stage if len(stage) <= room else f"{stage[: room - 1]}…"
        self._status.update(f"[bold]{escape(self._name)}[/] {escape(short)}")

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


ShowStage = StageLines | _StageStatus
"""Shows a stage in place of the one before."""


@contextmanager
def showing_stage(name: str, *, is_counter: bool = False) -> Iterator[ShowStage]:
    """Show the stage of a wait as a status line on a terminal, and elsewhere as lines (see `StageLines`)."""
    if not sys.stderr.isatty():
        yield StageLines(name, is_counter=is_counter)
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    with console.status(escape(name)) as status:
        yield _StageStatus(name, console, status)


@contextmanager
def watching(name: str, look: Callable[[], str | None], *, is_counter: bool = False) -> Iterator[Callable[[], None]]:
    """
    Show what a call that blocks this thread waits for, as another thread finds it by `look`, after a second.

    Yields a function that ends it early: what it has shown is gone when it returns.
    """
    is_over = Event()

    def watch() -> None:
        if is_over.wait(_PATIENCE_S):
            return
        with showing_stage(name, is_counter=is_counter) as show:
            while not is_over.is_set():
                if stage := look():
                    show(stage)
                is_over.wait(_PATIENCE_S)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()

    def end() -> None:
        is_over.set()
        watcher.join()

    try:
        yield end
    finally:
        end()


def _number(number: int, unit: str) -> str:
    return format_size(number) if unit == "bytes" else f"{number:,}"


def _amount(number: int, unit: str) -> str:
    return _number(number, unit) + ("" if unit == "bytes" else f" {unit}")
