"""The goals, and whether they were reached. Pure values and functions."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Against = Literal["number", "best peer"]
HIGHER_IS_BETTER = frozenset({"output_tokens_per_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One figure of one cell, compared with a number or the best peer of the same run."""

    cell: str
    figure: str
    against: Against
    bound: float
    """The number, or the multiple of the best peer."""

    @property
    def wants_more(self) -> bool:
        return self.figure in HIGHER_IS_BETTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A goal and whether it was reached."""

    goal: Goal
    ours: float
    measured: float
    """`ours`, or `ours` as a multiple of the best peer."""
    hit: bool


GOALS: tuple[Goal, ...] = (
    Goal(cell="c1", figure="output_tokens_per_s", against="number", bound=450),
    Goal(cell="c1", figure="output_tokens_per_s", against="best peer", bound=2.3),
    Goal(cell="c1", figure="ttft_p50_ms", against="number", bound=40),
    Goal(cell="c1", figure="ttft_p50_ms", against="best peer", bound=0.5),
    Goal(cell="c8", figure="output_tokens_per_s", against="number", bound=1000),
    Goal(cell="c8", figure="output_tokens_per_s", against="best peer", bound=2.6),
    Goal(cell="c8", figure="ttft_p50_ms", against="number", bound=200),
    Goal(cell="c8", figure="ttft_p50_ms", against="best peer", bound=0.42),
    Goal(cell="c32", figure="output_tokens_per_s", against="number", bound=1300),
    Goal(cell="c32", figure="output_tokens_per_s", against="best peer", bound=2.65),
    Goal(cell="c32", figure="ttft_p50_ms", against="number", bound=600),
    Goal(cell="c32", figure="ttft_p50_ms", against="best peer", bound=0.38),
    Goal(cell="c32", figure="itl_p99_ms", against="best peer", bound=1.0),
    Goal(cell="shared", figure="ttft_p50_ms", against="best peer", bound=1.0),
    Goal(cell="late", figure="gap_max_ms", against="number", bound=100),
    Goal(cell="late", figure="gap_max_ms", against="best peer", bound=1.0),
)
"""A ratio is the absolute goal divided by the best peer on the machine that it was set on."""


def best(values: Mapping[str, float], *, figure: str) -> tuple[str, float] | None:
    """Return the row with the best value of a figure; None if there is no row."""
    if not values:
        return None
    choose: Callable[..., str] = max if figure in HIGHER_IS_BETTER else min
    name = choose(values, key=lambda row: values[row])
    return name, values[name]


def judge(goal: Goal, *, ours: Mapping[str, float], peers: Mapping[str, float]) -> Verdict | None:
    """
    Return whether our best row reached a goal.

    Args:
        goal: The goal.
        ours: Its figure by row of ours.
        peers: The same by row of a peer.

    Returns:
        None if there is no measurement to compare with.
    """
    our_best, peer_best = best(ours, figure=goal.figure), best(peers, figure=goal.figure)
    if our_best is None or (goal.against == "best peer" and peer_best is None):
        return None
    measured = our_best[1]
    if goal.against == "best peer" and peer_best is not None:
        measured /= peer_best[1]
    compare = operator.ge if goal.wants_more else operator.le
    return Verdict(goal=goal, ours=our_best[1], measured=measured, hit=compare(measured, goal.bound))
