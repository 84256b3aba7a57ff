"""
When a scheduled action is due: `at(...)`, `rate(...)` and `cron(...)` with time zone, StartTime and EndTime.

Source: Application Auto Scaling API reference, PutScheduledAction; user guide, "Scheduled scaling".
"""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from headrace.control.autoscaling.planning.cron import Cron, parse_cron
from headrace.state.records import Json

UNITS_S = {"minute": 60, "hour": 3600, "day": 86_400}
RATE = re.compile(r"([1-9][0-9]{0,8}) (minute|hour|day)(s?)")
LOOK_BACK_S = (3600.0, 86_400.0, 32 * 86_400.0, math.inf)
FORMS = "at(yyyy-mm-ddThh:mm:ss), rate(value unit) or cron(fields)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One of three kinds of expression; the two others are None."""

    at_s: float | None = None
    """Once. Seconds since 1970."""
    every_s: float | None = None
    cron: Cron | None = None
    zone: tzinfo = UTC


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """When a schedule is in force, seconds since 1970."""

    created_s: float
    """A rate without a start counts from here."""
    start_s: float | None = None
    """`StartTime`: the action runs then, too, unless its schedule is `at`."""
    end_s: float | None = None
    """`EndTime`: nothing runs after it."""


def window_of(spec: Json) -> Window:
    """Return when a scheduled action is in force."""
    start_s, end_s = spec.get("StartTime"), spec.get("EndTime")
    return Window(
        created_s=float(spec["put_s"]),
        start_s=None if start_s is None else float(start_s),
        end_s=None if end_s is None else float(end_s),
    )


def parse(expression: str, timezone: str | None = None) -> Schedule:
    """
    Read an expression; `timezone` is an IANA name, and of no meaning to a rate.

    Raises:
        ValueError: It is not one; the text says what was wanted.
    """
    zone = _zone(timezone) if timezone else UTC
    kind, _, rest = expression.strip().partition("(")
    if not rest.endswith(")") or kind not in ("at", "rate", "cron"):
        raise ValueError(f"The schedule is {expression!r}; wanted: {FORMS}.")
    inner = rest[:-1].strip()
    if kind == "at":
        return Schedule(at_s=_at_s(inner, zone), zone=zone)
    if kind == "rate":
        return Schedule(every_s=_every_s(inner), zone=zone)
    return Schedule(cron=parse_cron(inner), zone=zone)


def next_time(schedule: Schedule, *, after_s: float, window: Window) -> float | None:
    """The first time after `after_s` (not at it) that the action runs, seconds since 1970; None: never again."""
    if schedule.at_s is not None:
        found = schedule.at_s if schedule.at_s > after_s else None
        is_early = found is not None and window.start_s is not None and found < window.start_s
        return None if is_early else _until_end(found, window)
    if window.start_s is not None and window.start_s > after_s:
        return _until_end(window.start_s, window)
    if schedule.every_s is not None:
        base_s = window.created_s if window.start_s is None else window.start_s
        num_past = max(0, int((after_s - base_s) // schedule.every_s))
        return _until_end(base_s + (num_past + 1) * schedule.every_s, window)
    return _until_end(_next_cron(schedule, after_s, window), window)


def due_time(schedule: Schedule, *, after_s: float, now_s: float, window: Window) -> float | None:
    """
    The last time in (after_s, now_s] that the action should have run; None: it is not due.

    What was missed meanwhile (the platform was down) runs once, not once for each time.
    """
    for back_s in LOOK_BACK_S:  # Far behind, most of the times between need not be counted through.
        found = None
        time_s = next_time(schedule, after_s=max(after_s, now_s - back_s), window=window)
        while time_s is not None and time_s <= now_s:
            found = time_s
            time_s = next_time(schedule, after_s=time_s, window=window)
        if found is not None or now_s - back_s <= after_s:
            return found
    return None


def _until_end(time_s: float | None, window: Window) -> float | None:
    return None if time_s is None or (window.end_s is not None and time_s > window.end_s) else time_s


def _next_cron(schedule: Schedule, after_s: float, window: Window) -> float | None:
    """In local time, and each local time once: those that a clock change skips do not run, doubled ones run first."""
    assert schedule.cron is not None  # our own bug otherwise: `Schedule` has one of three
    moment = datetime.fromtimestamp(after_s, schedule.zone).replace(tzinfo=None, fold=0)
    latest_s = window.end_s
    while True:
        found = schedule.cron.next_local(moment)
        if found is None:
            return None
        time_s = found.replace(tzinfo=schedule.zone).timestamp()
        is_real = datetime.fromtimestamp(time_s, schedule.zone).replace(tzinfo=None, fold=0) == found
        if is_real and time_s > after_s:
            return time_s
        if latest_s is not None and time_s > latest_s:
            return None
        moment = found


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as exc:
        raise ValueError(
            f"Timezone is {name!r}; wanted: the name of an IANA time zone, such as Europe/Berlin."
        ) from exc


def _at_s(text: str, zone: tzinfo) -> float:
    try:
        moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=zone)
    except ValueError:
        raise ValueError(f"at({text}) is no time; wanted: at(yyyy-mm-ddThh:mm:ss).") from None
    return moment.timestamp()


def _every_s(text: str) -> float:
    match = RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"rate({text}) is no rate; wanted: rate(value unit), the unit minute(s), hour(s) or day(s).")
    return float(int(match[1]) * UNITS_S[match[2]])


def utc_s(text: str) -> float:
    """
    An ISO time in seconds since 1970; without an offset it is UTC.

    Raises:
        ValueError: It is no time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; wanted: yyyy-mm-ddThh:mm:ss, UTC.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
