"""Deadlines of tests."""

from typing import Final

WAIT_S: Final = 240.0
"""Longest wait for an event. Only a failing test waits this long; a process can take a minute to start."""
