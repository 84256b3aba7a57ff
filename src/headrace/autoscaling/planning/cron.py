"""
Cron expressions in AWS's form: minutes, hours, day of month, month, day of week, year; with seven, seconds first. Pure.

Source: EventBridge user guide, "Cron expressions reference", which Application Auto Scaling's guide refers to.
"""

from calendar import monthrange
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import partial
from itertools import product

MONTHS = {
    name: i
    for i, name in enumerate(
        ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"], start=1
    )
}
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
        earliest = after.replace(microsecond=0) + timedelta(seconds=1)
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
    """
    Parse the fields between the parentheses.

    Raises:
        ValueError: They are not a valid expression.
    """
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
        return partial(_nearest_only, day)
    return partial(_within_month, _numbers(text, 1, 31, field="day-of-month"))


def _within_month(days: frozenset[int], year: int, month: int) -> frozenset[int]:
    last = monthrange(year, month)[1]
    return frozenset(day for day in days if day <= last)


def _nearest_only(day: int, year: int, month: int) -> frozenset[int]:
    return frozenset({_nearest_weekday(year, month, day)} if day <= monthrange(year, month)[1] else ())


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
