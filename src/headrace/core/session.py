"""Stateful sessions of SageMaker's runtime API."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Session:
    """A stateful session of SageMaker's runtime API, whose requests continue each other's prompts."""

    id: str
    expires_s: float
    """Seconds since 1970."""
    is_closed: bool = False
    clock: Callable[[], float] = time.time

    @property
    def has_ended(self) -> bool:
        return self.is_closed or self.expires_s <= self.clock()
