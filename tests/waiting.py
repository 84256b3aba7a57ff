"""How long tests wait for what has to happen."""

from typing import Final

WAIT_S: Final = 240.0
"""Longest wait for an event. Only a failing test waits so long; to start a process takes a minute on a busy machine."""
