"""Deadlines of tests, and the pauses until then."""

from collections.abc import Iterator
from typing import Final

WAIT_S: Final = 240.0
"""Longest wait for an event. Only a failing test waits this long; a process can take a minute to start."""


def pauses(first_s: float = 0.02, longest_s: float = 0.25) -> Iterator[float]:
    """
    Yield the seconds between two looks at something: short ones at first, and longer ones for what takes long.

    A look at a platform takes it and its client 10 ms of CPU time: every 50 ms they would use a fifth of a core.
    """
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(longest_s, 1.1 * pause_s)
