"""Figures from the times of wake-ups. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import results

GOAL_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request that was sent at zero."""

    api: str
    first_s: float | None
    """From sending it to the first byte of its text; None: it was lost."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """A wake-up from zero, with its requests."""

    number: int
    requests: tuple[Request, ...]

    @property
    def first_s(self) -> float | None:
        return min((request.first_s for request in self.requests if request.first_s is not None), default=None)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not below this share of all values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def summary(wakes: Sequence[WakeUp]) -> dict[str, float]:
    requests = [request for wake in wakes for request in wake.requests]
    times = [request.first_s for request in requests if request.first_s is not None]
    firsts = [wake.first_s for wake in wakes if wake.first_s is not None]
    found: dict[str, float] = {
        "wake_ups": len(wakes),
        "requests": len(requests),
        "lost": len(requests) - len(times),
        "over_goal": sum(time > GOAL_S for time in times),
    }
    for name, values in (("first_request", firsts), ("all_requests", times)):
        if values:
            found |= {f"{name}_{label}_s": round(quantile(values, share), 3) for label, share in _SHARES}
    return found


_SHARES = (("p50", 0.5), ("p95", 0.95), ("max", 1.0))


def table(found: dict[str, float]) -> str:
    rows = []
    for name, title in (("first_request", "quickest request of a wake-up"), ("all_requests", "all requests")):
        cells = [f"{found[f'{name}_{label}_s']:.2f} s" for label, _ in _SHARES if f"{name}_{label}_s" in found]
        rows.append([title, *cells])
    counts = (
        f"{found['wake_ups']:.0f} wake-ups, {found['requests']:.0f} requests, {found['lost']:.0f} lost, "
        f"{found['over_goal']:.0f} over {GOAL_S:g} s."
    )
    return f"{results.table(['request at zero to first byte', 'p50', 'p95', 'slowest'], rows)}\n\n{counts}"
