"""A budget for the bytes of bodies in memory, of all requests and whole responses of a server together."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

FREE_BYTES = 64 * 1024
"""The first bytes of each body are not counted, so that slow large bodies never keep out small ones."""


class BudgetSpent(Exception):
    """The bodies of other requests fill the budget."""


class BodyBudget:
    """The bytes that the bodies of one server may hold."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        """Counted bytes of all bodies."""
        self.on_release: Callable[[], None] = lambda: None
        """Called after a body has ended."""

    @contextmanager
    def share(self) -> Iterator["BodyShare"]:
        """Count a body until the block ends."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.held_bytes -= share.counted_bytes
            self.on_release()

    @contextmanager
    def holding(self, num_bytes: int) -> Iterator[None]:
        """Count a response until the block ends. It is never refused, as it is in memory already."""
        with self.share() as share:
            with suppress(BudgetSpent):
                share.add(num_bytes)
            yield


class BodyShare:
    """The part of the budget that one body holds."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.num_bytes = 0
        """Bytes of the body that have arrived."""

    @property
    def counted_bytes(self) -> int:
        """The bytes of this body that count against the budget."""
        return max(0, self.num_bytes - FREE_BYTES)

    def add(self, num_bytes: int) -> None:
        """
        Count bytes that have arrived.

        Raises:
            BudgetSpent: they exceed the budget; they still count until the block ends.
        """
        before = self.counted_bytes
        self.num_bytes += num_bytes
        self._budget.held_bytes += self.counted_bytes - before
        if self.counted_bytes and self._budget.held_bytes > self._budget.max_bytes:
            raise BudgetSpent
