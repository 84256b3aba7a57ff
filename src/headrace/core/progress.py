"""
Progress reports of long work such as loading a model.

Loaders call a `Progress` now and then; the command line draws progress bars from it, servers and tests ignore it.
"""

from typing import Protocol


class Progress(Protocol):
    """A callback with running totals; a task begins with its first call and ends when `completed` reaches `total`."""

    def __call__(self, task: str, completed: int, total: int, unit: str = "bytes") -> None:
        """Report that `completed` of `total` units of `task` are done."""
        ...


def no_progress(task: str, completed: int, total: int, unit: str = "bytes") -> None:
    """Ignore the report."""
