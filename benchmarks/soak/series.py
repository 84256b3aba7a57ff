"""The series of a soak, what each must keep to, and the verdict. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.harness import results
from benchmarks.soak.drift import GOAL_SHARE, Drift, Point, drift, window_medians

MIB = 1024 * 1024
WARM_UP_SHARE = 0.25
"""Share of the run before the first window, by default: pools, caches and heaps fill in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The limits that a series must keep to."""

    unit: str
    is_judged: bool = True
    """False: the series is drawn and reported, and has no part in the verdict."""
    resolution: float = 0.0
    """The smallest change that counts as growth."""
    bound: float | None = None
    """The series may grow up to this value: its setting bounds it, not its level."""


_MEMORY = Rule(unit="bytes", resolution=MIB)
FILE = Rule(unit="bytes", resolution=MIB / 4)
WATCHED_FILE = Rule(unit="bytes", is_judged=False)
RULES: dict[str, Rule] = {
    "rss": _MEMORY,
    "pss": _MEMORY,
    "anonymous": _MEMORY,
    "descriptors": Rule(unit="", resolution=1),
    "threads": Rule(unit="", resolution=1),
    "cpu": Rule(unit="cores", is_judged=False),
    "processes": Rule(unit="", is_judged=False),
    "latency": Rule(unit="s", is_judged=False),
}
"""Rule by the kind of a series; files have their own."""


@dataclass(kw_only=True)
class Series:
    """One measured quantity over the run."""

    name: str
    rule: Rule
    points: list[Point] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one series."""

    name: str
    unit: str
    verdict: str
    """`level`, `grows`, `bounded`, `over its bound`, `watched` or `too few samples`."""
    medians: tuple[Point, ...]
    drift: Drift | None
    maximum: float

    @property
    def is_failure(self) -> bool:
        """Return whether the soak fails because of this series."""
        return self.verdict in ("grows", "over its bound")


def judge(series: Series, *, from_s: float, to_s: float) -> Finding:
    """Return the verdict on a series between the end of the warm-up and the end of the run."""
    medians = window_medians(series.points, from_s=from_s, to_s=to_s)
    found = drift(medians)
    maximum = max((value for _, value in series.points), default=0.0)
    return Finding(
        name=series.name,
        unit=series.rule.unit,
        verdict=_verdict(series.rule, found, maximum),
        medians=tuple(medians),
        drift=found,
        maximum=maximum,
    )


def _verdict(rule: Rule, found: Drift | None, maximum: float) -> str:
    if rule.bound is not None:
        return "bounded" if maximum <= rule.bound else "over its bound"
    if not rule.is_judged:
        return "watched"
    if found is None:
        return "too few samples"
    return "grows" if found.is_growth(goal_share=GOAL_SHARE, resolution=rule.resolution) else "level"


def in_words(value: float, unit: str) -> str:
    if unit == "bytes" and abs(value) < MIB:
        return f"{value / 1024:,.0f} KiB"
    if unit == "bytes":
        return f"{value / MIB:,.1f} MiB"
    return f"{value:,.3g} {unit}".strip() if abs(value) < 1000 else f"{value:,.0f} {unit}".strip()


def table(findings: Sequence[Finding], *, hours: float) -> str:
    """Return the findings as Markdown; `hours` is the time that the drift covers."""
    rows = []
    for finding in findings:
        most, level, share, rate = in_words(finding.maximum, finding.unit), "", "", ""
        if finding.drift is not None:
            level = in_words(finding.drift.level, finding.unit)
            share = f"{100 * finding.drift.share:+.1f} %"
            rate = in_words(finding.drift.change / hours, finding.unit) if finding.unit == "bytes" else ""
        verdict = f"**{finding.verdict}**" if finding.is_failure else finding.verdict
        rows.append([finding.name, level, most, share, rate, verdict])
    return results.table(["series", "level", "most", "drift", "an hour", "verdict"], rows)


def as_json(finding: Finding) -> dict[str, object]:
    found: Mapping[str, float] = asdict(finding.drift) if finding.drift else {}
    return {
        "verdict": finding.verdict,
        "unit": finding.unit,
        "maximum": finding.maximum,
        "drift": {name: round(value, 6) for name, value in found.items()},
        "medians": [(round(time_s, 1), round(value, 6)) for time_s, value in finding.medians],
    }
