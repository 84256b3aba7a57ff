"""
How long points are kept, by the length of their period. Pure.

Source: CloudWatch user guide, "Metrics retention".
"""

from dataclasses import dataclass

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S


@dataclass(frozen=True, slots=True)
class Tier:
    """Points of one length."""

    period_s: int
    kept_s: float


TIERS = (Tier(10, 3 * _HOUR_S), Tier(60, 15 * _DAY_S), Tier(300, 63 * _DAY_S), Tier(3600, 455 * _DAY_S))
"""Finest first. Every measurement is counted in all of them."""


def tier_of(period_s: int) -> int:
    """Which tier answers for a period: the one that is kept longest of those whose points it can be made of."""
    fitting = [number for number, tier in enumerate(TIERS) if period_s % tier.period_s == 0]
    return max(fitting, default=0)


def whole_period(period_s: int) -> int:
    """The period in which points are given; shorter ones than ten seconds are not kept."""
    return max(period_s, TIERS[0].period_s)
