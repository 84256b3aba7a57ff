"""
Times at which a scheduled action is due: `at(...)`, `rate(...)` and `cron(...)`, time zone, StartTime, EndTime. Pure.

Source: Application Auto Scaling API reference, PutScheduledAction; user guide, "Scheduled scaling".
"""

import re
from calendar import monthrange
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import partial
from itertools import product
from zoneinfo import ZoneInfo

_MONTH_NAMES = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
MONTHS = {name: i for i, name in enumerate(_MONTH_NAMES, start=1)}
DAYS = {name: i for i, name in enumerate(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"], start=1)}
FIRST_YEAR, LAST_YEAR = 1970, 2199
LAST_DAY = date(LAST_YEAR, 12, 31)
FORM = "cron(minutes hours day-of-month month day-of-week year)"

DaysOf = Callable[[int, int], frozenset[int]]
"""(year, month) → days of that month, 1 to 31."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A parsed expression: the local times that match it. Numbers are ascending."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    years: tuple[int, ...]
    days: DaysOf

    def next_local(self, after: datetime, *, last: date = LAST_DAY) -> datetime | None:
        """
        Return the first match later than `after`; None if there is none.

        Args:
            after: A local time without a zone, like the result.
            last: The last day that is searched.
        """
        earliest = after + timedelta(seconds=1)  # times match whole seconds, so its fraction does not count
        for day in self._days_from(earliest.date(), last):
            found = self._first_time(earliest.time() if day == earliest.date() else time.min)
            if found is not None:
                return datetime.combine(day, found)
        return None

    def _first_time(self, earliest: time) -> time | None:
        """Return the first match of a day at `earliest` or later: minutes count only in its hour, seconds likewise."""
        bound = (earliest.hour, earliest.minute, earliest.second)
        times = (
            time(hour, minute, second)
            for hour in self.hours
            if hour >= bound[0]
            for minute in self.minutes
            if (hour, minute) >= bound[:2]
            for second in self.seconds
            if (hour, minute, second) >= bound
        )
        return next(times, None)

    def _days_from(self, first: date, last: date) -> Iterator[date]:
        years = [year for year in self.years if first.year <= year <= last.year]
        for year, month in product(years, self.months):
            if (first.year, first.month) <= (year, month) <= (last.year, last.month):
                for number in sorted(self.days(year, month)):
                    if first <= (day := date(year, month, number)) <= last:
                        yield day


def parse_cron(text: str) -> Cron:
    """Parse the fields between the parentheses. Raises `ValueError`: they are not a valid expression."""
    fields = text.upper().split()
    if len(fields) not in (6, 7):
        raise ValueError(f"cron({text}) has {len(fields)} fields; expected six, {FORM}.")
    seconds = fields.pop(0) if len(fields) == 7 else "0"
    minutes, hours, days, months, weekdays, years = fields
    if (days == "?") == (weekdays == "?"):
        raise ValueError(f"cron({text}): exactly one of day-of-month and day-of-week must be ?.")
    return Cron(
        seconds=tuple(sorted(_numbers(seconds, 0, 59, field="seconds"))),
        minutes=tuple(sorted(_numbers(minutes, 0, 59, field="minutes"))),
        hours=tuple(sorted(_numbers(hours, 0, 23, field="hours"))),
        months=tuple(sorted(_numbers(months, 1, 12, field="month", names=MONTHS))),
        years=tuple(sorted(_numbers(years, FIRST_YEAR, LAST_YEAR, field="year"))),
        days=_weekdays(weekdays) if days == "?" else _month_days(days),
    )


def _numbers(text: str, low: int, high: int, *, field: str, names: dict[str, int] | None = None) -> frozenset[int]:
    """Parse `*`, `a` or `a-b`, each with an optional `/step`, separated by commas."""
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        try:
            start, stop = (
                (low, high) if span == "*" else (_number(first, names), _number(last if dash else first, names))
            )
            stop = high if slash and not dash else stop
            every = int(step) if slash else 1
        except ValueError:
            raise _bad_field(part, field, low, high) from None
        if not (low <= start <= high and low <= stop <= high and every >= 1):
            raise _bad_field(part, field, low, high)
        # A range may wrap around: FRI-MON.
        values = range(start, stop + 1) if start <= stop else [*range(start, high + 1), *range(low, stop + 1)]
        found.update(values[::every])
    return frozenset(found)


def _bad_field(text: str, field: str, low: int, high: int) -> ValueError:
    return ValueError(f"{text!r} is not a valid {field} of a cron expression; expected {low}-{high}, * or a/b.")


def _single(text: str, low: int, high: int, *, field: str, names: dict[str, int] | None = None) -> int:
    found = _numbers(text, low, high, field=field, names=names)
    if len(found) != 1:
        raise ValueError(f"{text!r} is several values of {field}; expected one before L, W or # of a cron expression.")
    return next(iter(found))


def _number(text: str, names: dict[str, int] | None) -> int:
    if names and text in names:
        return names[text]
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _month_days(text: str) -> DaysOf:
    """Parse day-of-month: numbers, `L` (the last), `LW` (the last weekday), `5W` (the weekday nearest to the 5th)."""
    if text == "L":
        return lambda year, month: frozenset({monthrange(year, month)[1]})
    if text == "LW":
        return lambda year, month: frozenset({_nearest_weekday(year, month, monthrange(year, month)[1])})
    if text.endswith("W"):
        day = _single(text[:-1], 1, 31, field="day-of-month")
        return lambda year, month: frozenset(
            {_nearest_weekday(year, month, day)} if day <= monthrange(year, month)[1] else ()
        )
    days = _numbers(text, 1, 31, field="day-of-month")
    return lambda year, month: frozenset(day for day in days if day <= monthrange(year, month)[1])


def _nearest_weekday(year: int, month: int, near: int) -> int:
    """Return the nearest day from Monday to Friday in the same month."""
    day = date(year, month, near)
    last = monthrange(year, month)[1]
    if day.weekday() == 5:
        return near - 1 if near > 1 else near + 2
    if day.weekday() == 6:
        return near + 1 if near < last else near - 2
    return near


def _weekdays(text: str) -> DaysOf:
    """Parse day-of-week (1 = SUN): numbers, names, `L` (Saturday), `6L` (last Friday), `3#2` (second Tuesday)."""
    if text == "L":
        text = "SAT"
    if text.endswith("L"):
        day = _single(text[:-1], 1, 7, field="day-of-week", names=DAYS)
        return partial(_nth_weekday, day, -1)
    name, sharp, nth = text.partition("#")
    if sharp:
        day = _single(name, 1, 7, field="day-of-week", names=DAYS)
        return partial(_nth_weekday, day, _single(nth, 1, 5, field="day-of-week") - 1)
    return partial(_on_weekdays, _numbers(text, 1, 7, field="day-of-week", names=DAYS))


def _on_weekdays(weekdays: frozenset[int], year: int, month: int) -> frozenset[int]:
    first, last = date(year, month, 1), monthrange(year, month)[1]
    days = (first + timedelta(days=i) for i in range(last))
    return frozenset(day.day for day in days if day.isoweekday() % 7 + 1 in weekdays)


def _nth_weekday(weekday: int, index: int, year: int, month: int) -> frozenset[int]:
    days = sorted(_on_weekdays(frozenset({weekday}), year, month))
    return frozenset({days[index]} if index < len(days) else ())


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
    """Parse an expression, in an IANA time zone that a rate ignores. Raises `ValueError`."""
    zone = _zone(timezone) if timezone else UTC
    kind, _, rest = expression.strip().partition("(")
    if not rest.endswith(")") or kind not in ("at", "rate", "cron"):
        raise ValueError(f"The schedule is {expression!r}; expected {FORMS}.")
    inner = rest[:-1].strip()
    if kind == "cron":
        return Schedule(cron=parse_cron(inner), zone=zone)
    if kind == "rate":
        if (rate := RATE.fullmatch(inner)) is None:
            unit = "rate(value unit) with minute(s), hour(s) or day(s)"
            raise ValueError(f"rate({inner}) is not a rate; expected {unit}.")
        return Schedule(every_s=float(int(rate[1]) * UNITS_S[rate[2]]), zone=zone)
    try:
        moment = datetime.strptime(inner, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=zone)
    except ValueError:
        raise ValueError(f"at({inner}) is not a time; expected at(yyyy-mm-ddThh:mm:ss).") from None
    return Schedule(at_s=moment.timestamp(), zone=zone)


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


def utc_s(text: str) -> float:
    """Parse an ISO time into seconds since 1970; without an offset it is UTC. Raises `ValueError`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; expected yyyy-mm-ddThh:mm:ss, UTC.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
