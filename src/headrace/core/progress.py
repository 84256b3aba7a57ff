"""
How long work tells how far it is, without knowing who looks.

Loaders take a `Progress` and call it now and then; the command line draws bars from it, servers and tests ignore it.
"""

from typing import Protocol


class Progress(Protocol):
    """Called with running totals; a task begins with its first call and ends when `completed` reaches `total`."""

    def __call__(self, task: str, completed: int, total: int, unit: str = "bytes") -> None:
        """Report that `completed` of `total` units of `task` are done."""
        ...


def no_progress(task: str, completed: int, total: int, unit: str = "bytes") -> None:
    """Ignore the report."""
