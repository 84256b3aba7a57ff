"""Decisions of the pool: when a batch starts, when a failed child is restarted, when the pool gives up. Pure."""

from dataclasses import dataclass
from typing import Final

from headrace.handlers.spec import RestartPolicy

_BACKOFF_S: Final = (0.0, 1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0)


@dataclass(frozen=True, slots=True)
class Take:
    """Start a call with the first `num_items` of the queue."""

    num_items: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for more items, at most `delay_s`."""

    delay_s: float


def next_batch(num_alike: int, waited_s: float, *, batch_size: int, max_delay_s: float, is_closed: bool) -> Take | Wait:
    """
    Decide whether a free child takes the items at the head of a queue now.

    Args:
        num_alike: items at the head that one call can take, at least 1.
        waited_s: time that the first of them has waited.
        batch_size: largest number of items in a call.
        max_delay_s: longest time that the first item waits for others.
        is_closed: no more items can join them.
    """
    remaining_s = max_delay_s - waited_s
    if num_alike >= batch_size or is_closed or remaining_s <= 0:
        return Take(min(num_alike, batch_size))
    return Wait(remaining_s)


@dataclass(frozen=True, slots=True)
class Failures:
    """The failures of a model's children since the last success."""

    count: int = 0
    first_s: float = 0.0
    """Time of the first failure."""

    def add(self, now_s: float) -> "Failures":
        """Return the series with one more failure."""
        return Failures(self.count + 1, self.first_s if self.count else now_s)

    def restart_delay_s(self) -> float:
        """Return the time to wait before the next start."""
        return _BACKOFF_S[min(self.count, len(_BACKOFF_S)) - 1] if self.count else 0.0

    def gives_up(self, policy: RestartPolicy, now_s: float) -> bool:
        """Return whether the pool gives up on the model."""
        if policy.max_failures is not None and self.count > policy.max_failures:
            return True
        return policy.max_retry_s is not None and self.count > 0 and now_s - self.first_s >= policy.max_retry_s
