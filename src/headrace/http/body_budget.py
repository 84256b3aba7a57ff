"""The bytes of request bodies that a server holds, for all requests together."""

from collections.abc import Iterator
from contextlib import contextmanager

FREE_BYTES = 64 * 1024
"""The beginning of each body is not counted: large bodies that come slowly never keep out small ones."""


class BudgetSpent(Exception):
    """Other requests hold as many bytes as the server takes."""


class BodyBudget:
    """One for each server."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        """Counted bytes."""

    @contextmanager
    def share(self) -> Iterator["BodyShare"]:
        """Count one body until the block ends."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.held_bytes -= share.counted_bytes


class BodyShare:
    """The part of the budget that one body holds."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.num_bytes = 0
        """Of the body so far."""

    @property
    def counted_bytes(self) -> int:
        """What the budget counts of it."""
        return max(0, self.num_bytes - FREE_BYTES)

    def add(self, num_bytes: int) -> None:
        """
        Count bytes that have come.

        Raises:
            BudgetSpent: there is no room for them; they count until the block ends nevertheless.
        """
        before = self.counted_bytes
        self.num_bytes += num_bytes
        self._budget.held_bytes += self.counted_bytes - before
        if self.counted_bytes and self._budget.held_bytes > self._budget.max_bytes:
            raise BudgetSpent
