"""
Times at which a scheduled action is due: `at(...)`, `rate(...)` and `cron(...)`, time zone, StartTime, EndTime. Pure.

Source: Application Auto Scaling API reference, PutScheduledAction; user guide, "Scheduled scaling".
"""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from headrace.autoscaling.planning.cron import LAST_DAY, Cron, parse_cron

UNITS_S = {"minute": 60, "hour": 3600, "day": 86_400}
RATE = re.compile(r"([1-9][0-9]{0,8}) (minute|hour|day)(s?)")
_MAX_ZONE_CHARS = 64
"""IANA's names have at most 32; Python imports a package for each part of a name between slashes."""
_LAST_S = datetime(LAST_DAY.year + 1, 1, 2, tzinfo=UTC).timestamp()
"""After the last time of any cron expression, in every time zone."""
FORMS = "at(yyyy-mm-ddThh:mm:ss), rate(value unit) or cron(fields)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A parsed expression of one of three kinds; the other two are None."""

    at_s: float | None = None
    """`at`: seconds since 1970."""
    every_s: float | None = None
    cron: Cron | None = None
    zone: tzinfo = UTC


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time in which a schedule is in force, seconds since 1970."""

    created_s: float
    """Time at which the schedule was created; a rate without a start counts from here."""
    start_s: float | None = None
    """`StartTime`: the action runs then as well, unless its schedule is `at`."""
    end_s: float | None = None
    """`EndTime`: nothing runs after it."""


def parse(expression: str, timezone: str | None = None) -> Schedule:
    """
    Parse an expression; `timezone` is an IANA name, and is ignored for a rate.

    Raises:
        ValueError: It is not a valid expression.
    """
    zone = _zone(timezone) if timezone else UTC
    kind, _, rest = expression.strip().partition("(")
    if not rest.endswith(")") or kind not in ("at", "rate", "cron"):
        raise ValueError(f"The schedule is {expression!r}; expected {FORMS}.")
    inner = rest[:-1].strip()
    if kind == "at":
        return Schedule(at_s=_at_s(inner, zone), zone=zone)
    if kind == "rate":
        return Schedule(every_s=_every_s(inner), zone=zone)
    return Schedule(cron=parse_cron(inner), zone=zone)


def next_time(schedule: Schedule, *, after_s: float, window: Window) -> float | None:
    """Return the first time later than `after_s` at which the action runs, seconds since 1970; None for never."""
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
    Return the last time in (after_s, now_s] at which the action should have run; None if it is not due.

    An action that was missed several times (the platform was down) runs once.
    """
    end_s = now_s if window.end_s is None else min(now_s, window.end_s)
    window = replace(window, end_s=end_s)  # times after now need not be searched
    found = next_time(schedule, after_s=after_s, window=window)
    if found is None:
        return None
    # Bisect: an action that runs each second has a million times in two weeks of downtime.
    first_s, last_s = found, end_s
    while last_s - first_s > 1.0:
        middle_s = (first_s + last_s) / 2
        later = next_time(schedule, after_s=middle_s, window=window)
        if later is None:
            last_s = middle_s
        else:
            first_s = found = later
    while (later := next_time(schedule, after_s=found, window=window)) is not None:
        found = later
    return found


def _until_end(time_s: float | None, window: Window) -> float | None:
    return None if time_s is None or (window.end_s is not None and time_s > window.end_s) else time_s


def _next_cron(schedule: Schedule, after_s: float, window: Window) -> float | None:
    """Return the next local time; those that a clock change skips do not run, repeated ones run once."""
    assert schedule.cron is not None  # a Schedule has one of three kinds
    latest_s = _LAST_S if window.end_s is None else min(window.end_s, _LAST_S)
    if latest_s <= after_s:
        return None
    moment = _local(after_s, schedule.zone)
    # One day more, because clocks that are set back across midnight repeat the end of a day.
    last = min(LAST_DAY, _local(latest_s + UNITS_S["day"], schedule.zone).date())
    while True:
        found = schedule.cron.next_local(moment, last=last)
        if found is None:
            return None
        time_s = found.replace(tzinfo=schedule.zone).timestamp()
        is_real = _local(time_s, schedule.zone) == found
        if is_real and time_s > after_s:
            return time_s
        if time_s > latest_s:
            return None
        moment = found


def _local(time_s: float, zone: tzinfo) -> datetime:
    """Return a local time without its zone."""
    return datetime.fromtimestamp(time_s, zone).replace(tzinfo=None, fold=0)


def _zone(name: str) -> tzinfo:
    try:
        found = ZoneInfo(name) if len(name) <= _MAX_ZONE_CHARS else None
    except (ValueError, OSError, KeyError):
        found = None
    if found is None:
        raise ValueError(f"Timezone is {name!r}; expected the name of an IANA time zone, such as Europe/Berlin.")
    return found


def _at_s(text: str, zone: tzinfo) -> float:
    try:
        moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=zone)
    except ValueError:
        raise ValueError(f"at({text}) is not a time; expected at(yyyy-mm-ddThh:mm:ss).") from None
    return moment.timestamp()


def _every_s(text: str) -> float:
    match = RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"rate({text}) is not a rate; expected rate(value unit) with minute(s), hour(s) or day(s).")
    return float(int(match[1]) * UNITS_S[match[2]])


def utc_s(text: str) -> float:
    """
    Parse an ISO time into seconds since 1970; without an offset it is UTC.

    Raises:
        ValueError: It is not an ISO time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; expected yyyy-mm-ddThh:mm:ss, UTC.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
