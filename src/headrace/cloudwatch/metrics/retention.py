"""
Retention of datapoints by the length of their period. Pure.

Source: CloudWatch user guide, "Metrics retention".
"""

from dataclasses import dataclass

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S


@dataclass(frozen=True, slots=True)
class Tier:
    """Datapoints of one period length."""

    period_s: int
    kept_s: float


TIERS = (Tier(10, 3 * _HOUR_S), Tier(60, 15 * _DAY_S), Tier(300, 63 * _DAY_S), Tier(3600, 455 * _DAY_S))
"""Finest first. Every measurement counts in all of them."""


def tier_of(period_s: int) -> int:
    """Return the index of the tier to read a period from: the coarsest whose points add up to it."""
    fitting = [number for number, tier in enumerate(TIERS) if period_s % tier.period_s == 0]
    return max(fitting, default=0)


def whole_period(period_s: int) -> int:
    """Return the period in which points are returned: at least ten seconds, the finest that is kept."""
    return max(period_s, TIERS[0].period_s)
