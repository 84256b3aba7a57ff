"""Judges what faults of machines did to the requests through the others, and to the leader. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from benchmarks.chaos.history import RIGHT, Applied, Attempt, History
from benchmarks.machines.world import NAMES

LEADER_S: Final = 5.0
"""Seconds within which another machine leads."""
_ORDERLY: Final = "machine-stop"
Leaders = Sequence[tuple[float, str]]
"""Time → name of the machine that leads from then on; empty while none does."""


def broken_promises(history: History, leaders: Leaders) -> list[str]:
    """Return a sentence for each request through another machine that failed, and for each leader that came late."""
    found, unhit = [], _unhit(history)
    for fault in history.faults:
        at = f"{fault.kind} of {fault.what} at {fault.began_s:.1f} s"
        found += [
            f"{at}: attempt {attempt.id} through {NAMES[attempt.through]} failed: {attempt.outcome} {attempt.detail}"
            for attempt in _through_others(fault, unhit)
            if attempt.outcome != RIGHT and not _was_there(fault, attempt, history)
        ]
        if (delay_s := leader_delay_s(fault, leaders)) is not None and delay_s > LEADER_S:
            found.append(f"{at}: another machine leads after {delay_s:.1f} s; expected at most {LEADER_S:.0f}.")
    return found


def rows(history: History, leaders: Leaders) -> list[dict[str, Any]]:
    """Return for each fault what became of the requests that it could concern."""
    unhit = _unhit(history)
    return [_row(fault, [*_through_others(fault, unhit)], history, leaders) for fault in history.faults]


def _row(fault: Applied, through_others: Sequence[Attempt], history: History, leaders: Leaders) -> dict[str, Any]:
    were_there = [_was_there(fault, attempt, history) for attempt in through_others if attempt.outcome != RIGHT]
    return {
        "fault": fault.kind,
        "machine": fault.what,
        "began_s": round(fault.began_s, 1),
        "led": _leader_at(fault.began_s, leaders) == fault.what,
        "leader_s": leader_delay_s(fault, leaders),
        "through_others": len(through_others),
        "failed_through_others": len(were_there) - sum(were_there),
        "cut_off_with_their_worker": sum(were_there),
        "back_s": round(fault.ended_s - fault.undone_s, 1),
    }


def by_kind(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the sums of the rows of each kind of fault, and the longest time to a leader."""
    sums = ("through_others", "failed_through_others", "cut_off_with_their_worker")
    kinds: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(row["fault"] for row in found):
        mine = [row for row in found if row["fault"] == kind]
        delays_s = [row["leader_s"] for row in mine if row["leader_s"] is not None]
        kinds[kind] = {
            "faults": len(mine),
            **{name: sum(row[name] for row in mine) for name in sums},
            "led": sum(row["led"] for row in mine),
            "leader_s": {"median": median(delays_s), "longest": max(delays_s)} if delays_s else None,
        }
    return kinds


def leader_delay_s(fault: Applied, leaders: Leaders) -> float | None:
    """
    Return the time from a fault of the leader until another machine leads; None if another one led, or none does.

    A leader that is stopped in order leads until its clients have left: the time counts from there.
    """
    if _leader_at(fault.began_s, leaders) != fault.what:
        return None
    later = [(at_s, name) for at_s, name in leaders if fault.began_s < at_s <= fault.ended_s]
    began_s = later[0][0] if later and fault.kind == _ORDERLY else fault.began_s
    first = next((at_s for at_s, name in later if name not in {"", fault.what}), None)
    return None if first is None else round(first - began_s, 2)


def _leader_at(at_s: float, leaders: Leaders) -> str:
    return next((name for began_s, name in reversed(leaders) if began_s <= at_s and name), "")


def _unhit(history: History) -> Sequence[Attempt]:
    """Return the attempts through machines that no fault hit meanwhile."""
    attempts = [attempt for request in history.requests for attempt in request.attempts]
    return [attempt for attempt in attempts if not _is_hit(attempt, history.faults)]


def _through_others(fault: Applied, unhit: Sequence[Attempt]) -> Iterator[Attempt]:
    """Yield those that were in flight while the fault lasted."""
    return (attempt for attempt in unhit if attempt.began_s <= fault.undone_s and fault.began_s <= attempt.ended_s)


def _is_hit(attempt: Attempt, faults: Sequence[Applied]) -> bool:
    """Return whether a fault hit the machine that an attempt was sent to, until the client had noticed it."""
    return any(
        fault.what == NAMES[attempt.through] and fault.began_s <= attempt.ended_s and attempt.began_s <= fault.ended_s
        for fault in faults
    )


def _was_there(fault: Applied, attempt: Attempt, history: History) -> bool:
    """Return whether the answer of an attempt came from the machine that was hit: no other worker can continue it."""
    return fault.what in history.begun.get(attempt.id, ())
