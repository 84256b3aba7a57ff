from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.autoscaling.planning.schedule import Window, due_time, next_time, parse, parse_cron, utc_s

ANY = Window(created_s=0.0)
NEW_YEAR = datetime.fromisoformat("2026-01-01T00:00:00")


def following(expression: str, after: str, zone: str | None = None, window: Window = ANY) -> str | None:
    found = next_time(parse(expression, zone), after_s=utc_s(after), window=window)
    return None if found is None else datetime.fromtimestamp(found, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("cron(0 10 * * ? *)", "2026-11-21T12:00:00", "2026-11-22T10:00:00"),
        ("cron(15 12 * * ? *)", "2026-11-21T12:00:00", "2026-11-21T12:15:00"),
        ("cron(0 18 ? * MON-FRI *)", "2026-11-21T12:00:00", "2026-11-23T18:00:00"),
        ("cron(0 8 1 * ? *)", "2026-11-21T12:00:00", "2026-12-01T08:00:00"),
        ("cron(0/15 * * * ? *)", "2026-11-21T12:00:00", "2026-11-21T12:15:00"),
        ("cron(0/10 * ? * MON-FRI *)", "2026-11-21T12:00:00", "2026-11-23T00:00:00"),
        ("cron(0/5 8-17 ? * MON-FRI *)", "2026-11-20T17:55:00", "2026-11-23T08:00:00"),
        ("cron(30 6 ? * MON *)", "2026-11-21T12:00:00", "2026-11-23T06:30:00"),
        ("cron(0 9 L * ? *)", "2026-02-01T00:00:00", "2026-02-28T09:00:00"),
        ("cron(0 9 3W * ? *)", "2026-10-01T00:00:00", "2026-10-02T09:00:00"),
        ("cron(0 9 LW * ? *)", "2026-10-01T00:00:00", "2026-10-30T09:00:00"),
        ("cron(0 9 ? * 3#2 *)", "2026-11-01T00:00:00", "2026-11-10T09:00:00"),
        ("cron(0 9 ? * 6L *)", "2026-11-01T00:00:00", "2026-11-27T09:00:00"),
        ("cron(0 0 29 2 ? *)", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
        ("cron(30 0 9 * * ? *)", "2026-11-01T00:00:00", "2026-11-01T09:00:30"),
        ("cron(0 0 30 2 ? *)", "2026-01-01T00:00:00", None),
        ("cron(0 0 1 1 ? 2020)", "2026-01-01T00:00:00", None),
        ("at(2026-11-22T10:00:00)", "2026-11-21T00:00:00", "2026-11-22T10:00:00"),
        ("at(2026-11-22T10:00:00)", "2026-11-22T10:00:00", None),
        ("rate(5 hours)", "1970-01-01T01:00:00", "1970-01-01T05:00:00"),
    ],
)
def test_the_next_time_of_each_kind_of_schedule(expression, after, expected):
    assert following(expression, after) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # Names are numbers: JAN is 1, SUN is 1. A range may wrap around; a step counts from its first value.
        ("cron(0 9 1 JAN ? *)", ["2026-01-01T09", "2027-01-01T09"]),
        ("cron(0 9 1 DEC ? *)", ["2026-12-01T09", "2027-12-01T09"]),
        ("cron(0 9 ? * 1 *)", ["2026-01-04T09", "2026-01-11T09"]),
        ("cron(0 9 ? * SUN *)", ["2026-01-04T09", "2026-01-11T09"]),
        ("cron(0 9 ? * L *)", ["2026-01-03T09", "2026-01-10T09"]),
        ("cron(0 9 ? * FRI-SUN *)", ["2026-01-02T09", "2026-01-03T09", "2026-01-04T09", "2026-01-09T09"]),
        ("cron(0 22-1 5 1 ? 2026)", ["2026-01-05T00", "2026-01-05T01", "2026-01-05T22", "2026-01-05T23", None]),
        ("cron(0 20/2 5 1 ? 2026)", ["2026-01-05T20", "2026-01-05T22", None]),
        ("cron(0 1-6/2 5 1 ? 2026)", ["2026-01-05T01", "2026-01-05T03", "2026-01-05T05", None]),
        ("cron(0 9 1 1/6 ? 2026)", ["2026-01-01T09", "2026-07-01T09", None]),
        # The nearest weekday stays in its month: 1 August is a Saturday, 31 May a Sunday.
        ("cron(0 9 1W 8 ? 2026)", ["2026-08-03T09", None]),
        ("cron(0 9 31W 5 ? 2026)", ["2026-05-29T09", None]),
        ("cron(0 9 14W 2,3 ? 2026)", ["2026-02-13T09", "2026-03-13T09", None]),
        ("cron(0 9 15W 2,3 ? 2026)", ["2026-02-16T09", "2026-03-16T09", None]),
        ("cron(0 9 31W 2,3 ? 2026)", ["2026-03-31T09", None]),
        ("cron(0 9 31 2,4,5 ? 2026)", ["2026-05-31T09", None]),
        ("cron(0 9 L 2 ? *)", ["2026-02-28T09", "2027-02-28T09", "2028-02-29T09"]),
        # The nth or last weekday of a month; some months have no fifth one.
        ("cron(0 9 ? * SAT#1 *)", ["2026-01-03T09", "2026-02-07T09"]),
        ("cron(0 9 ? * 7#5 *)", ["2026-01-31T09", "2026-05-30T09"]),
        ("cron(0 9 ? * SATL *)", ["2026-01-31T09", "2026-02-28T09"]),
    ],
)
def test_the_days_of_each_kind_of_cron_expression(expression, expected):
    found, after = [], "2026-01-01T00:00:00"
    while after is not None and len(found) < len(expected):
        after = following(expression, after)
        found.append(after and after.removesuffix(":00:00"))
    assert found == expected


@pytest.mark.parametrize(
    ("form", "low", "high"),
    [
        ("{} * * * * ? *", 0, 59),
        ("{} * * * ? *", 0, 59),
        ("* {} * * ? *", 0, 23),
        ("* * {} * ? *", 1, 31),
        ("* * {}W * ? *", 1, 31),
        ("* * * {} ? *", 1, 12),
        ("* * ? * {} *", 1, 7),
        ("* * ? * {}L *", 1, 7),
        ("* * ? * {}#1 *", 1, 7),
        ("* * ? * 1#{} *", 1, 5),
        ("* * * * ? {}", 1970, 2199),
    ],
)
def test_each_field_has_its_bounds(form, low, high):
    for number in (low, high):
        parse_cron(form.format(number))
    for number in (low - 1, high + 1):
        with pytest.raises(ValueError, match=rf"expected {low}-{high}"):
            parse_cron(form.format(number))


def test_a_rate_counts_from_its_start_or_else_from_its_creation():
    window = Window(created_s=utc_s("2026-01-01T00:10:00"))
    assert following("rate(1 hour)", "2026-01-01T00:00:00", window=window) == "2026-01-01T01:10:00"
    assert following("rate(1 hour)", "2026-01-01T01:09:59", window=window) == "2026-01-01T01:10:00"
    assert following("rate(1 hour)", "2026-01-01T01:10:00", window=window) == "2026-01-01T02:10:00"
    assert following("rate(2 days)", "2026-01-01T02:00:00", window=window) == "2026-01-03T00:10:00"
    started = Window(created_s=window.created_s, start_s=utc_s("2026-01-01T00:15:00"))
    assert following("rate(1 hour)", "2026-01-01T00:10:00", window=started) == "2026-01-01T00:15:00"
    assert following("rate(1 hour)", "2026-01-01T00:15:00", window=started) == "2026-01-01T01:15:00"


def test_the_end_of_a_window_belongs_to_it():
    window = Window(created_s=0.0, end_s=utc_s("2026-01-02T09:00:00"))
    for expression in ("cron(0 9 * * ? *)", "at(2026-01-02T09:00:00)", "rate(1 hour)"):
        assert following(expression, "2026-01-02T08:00:00", window=window) == "2026-01-02T09:00:00"
        assert following(expression, "2026-01-02T09:00:00", window=window) is None
    early = Window(created_s=0.0, end_s=utc_s("2026-01-02T08:59:59"))
    assert following("cron(0 9 * * ? *)", "2026-01-02T08:00:00", window=early) is None
    assert following("at(2026-01-02T09:00:00)", "2026-01-02T08:00:00", window=early) is None


def test_time_zones_and_their_clock_changes():
    assert following("cron(0 18 ? * MON-FRI *)", "2026-11-23T12:00:00", "Etc/GMT+9") == "2026-11-24T03:00:00"
    assert following("at(2021-01-31T17:00:00)", "2021-01-01T00:00:00", "America/New_York") == "2021-01-31T22:00:00"
    # 02:30 is skipped in Berlin on 29 March 2026, and comes twice on 25 October 2026: the first counts.
    assert following("cron(30 2 * * ? *)", "2026-03-28T12:00:00", "Europe/Berlin") == "2026-03-30T00:30:00"
    assert following("cron(30 2 * * ? *)", "2026-10-24T12:00:00", "Europe/Berlin") == "2026-10-25T00:30:00"
    assert following("cron(30 2 * * ? *)", "2026-10-25T00:30:00", "Europe/Berlin") == "2026-10-26T01:30:00"


def test_start_and_end_bound_a_schedule():
    """The guide: every 5 hours from 30 January 2021 12:00 until 31 January 22:00; it runs at the start, too."""
    window = Window(created_s=0.0, start_s=utc_s("2021-01-30T12:00:00"), end_s=utc_s("2021-01-31T22:00:00"))
    times, after = [], "2021-01-01T00:00:00"
    while (found := following("rate(5 hours)", after, window=window)) is not None:
        times.append(found[8:13])
        after = found
    assert times == ["30T12", "30T17", "30T22", "31T03", "31T08", "31T13", "31T18"]
    assert following("at(2021-01-29T00:00:00)", "2021-01-01T00:00:00", window=window) is None


def test_an_action_missed_several_times_runs_once():
    schedule = parse("cron(0/1 * * * ? *)")
    now_s = utc_s("2026-11-21T12:00:30")
    assert due_time(schedule, after_s=0.0, now_s=now_s, window=ANY) == now_s - 30
    assert due_time(schedule, after_s=now_s - 30, now_s=now_s, window=ANY) is None
    yearly = parse("cron(0 0 1 1 ? *)")
    assert due_time(yearly, after_s=0.0, now_s=now_s, window=ANY) == utc_s("2026-01-01T00:00:00")


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "every day",
        "at(tomorrow)",
        "rate(0 minutes)",
        "rate(5 weeks)",
        "cron(* * * *)",
        "cron(0 9 * * * *)",
        "cron(0 9 ? * ? *)",
        "cron(60 9 * * ? *)",
        "cron(0/0 9 * * ? *)",
        "cron(0 9 1,2W * ? *)",
        "cron(0 9 ? * 3#6 *)",
        "cron(0 9 * FOO ? *)",
        "cron(0 9 * ٣ ? *)",
        "cron(0 9 -1 * ? *)",
        "cron(0 9 5/x * ? *)",
        "cron(0 9 * * ?)",
        "cron(0 9 * * ? *",
        "rate (5 minutes)",
        "when(5 minutes)",
    ],
)
def test_an_invalid_schedule_is_refused(expression):
    with pytest.raises(ValueError, match=r"expected|must be"):
        parse(expression)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "a/" * 800])
def test_an_unknown_zone_is_refused(zone):
    with pytest.raises(ValueError, match="IANA"):
        parse("cron(0 9 * * ? *)", zone)


ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata"])


@given(st.integers(0, 59), st.integers(0, 23), st.floats(0, 4e9), ZONES)
def test_the_next_time_is_later_and_there_is_none_between(minute, hour, after_s, zone):
    schedule = parse(f"cron({minute} {hour} * * ? *)", zone)
    found = next_time(schedule, after_s=after_s, window=ANY)
    assert found is not None
    assert after_s < found <= after_s + 2 * 86_400 + 7200
    local = datetime.fromtimestamp(found, schedule.zone)
    assert (local.hour, local.minute) == (hour, minute)


def numbers(low, high):
    return st.sets(st.integers(low, high), min_size=1, max_size=8).map(lambda found: ",".join(map(str, sorted(found))))


@given(numbers(0, 59), numbers(0, 59), numbers(0, 23), st.integers(0, 3 * 86_400), st.sampled_from([0, 250_000]))
def test_the_next_time_of_day_is_that_of_a_search_through_all_seconds(seconds, minutes, hours, after_s, after_us):
    cron = parse_cron(f"{seconds} {minutes} {hours} * * ? *")
    after = NEW_YEAR + timedelta(seconds=after_s, microseconds=after_us)
    fields = [{int(number) for number in text.split(",")} for text in (seconds, minutes, hours)]
    following = (after.replace(microsecond=0) + timedelta(seconds=number) for number in range(1, 5000))
    wanted = next(
        (t for t in following if t.second in fields[0] and t.minute in fields[1] and t.hour in fields[2]), None
    )
    found = cron.next_local(after)
    assert found is not None
    assert wanted == (found if found < after + timedelta(seconds=4999) else None)


@given(numbers(1, 31), numbers(1, 12), numbers(2026, 2030), st.integers(0, 2000))
def test_the_next_day_is_that_of_a_search_through_all_days(days, months, years, after_days):
    cron = parse_cron(f"0 0 {days} {months} ? {years}")
    after = NEW_YEAR + timedelta(days=after_days)
    fields = [{int(number) for number in text.split(",")} for text in (days, months, years)]
    following = (after + timedelta(days=number) for number in range(1, 2000))
    wanted = next((t for t in following if t.day in fields[0] and t.month in fields[1] and t.year in fields[2]), None)
    assert cron.next_local(after) == wanted
    if wanted is not None:
        assert cron.next_local(after, last=wanted.date()) == wanted
        assert cron.next_local(after, last=wanted.date() - timedelta(days=1)) is None


def test_a_time_in_each_second_is_found_without_a_search():
    every_second = parse("cron(* * * * * ? *)")
    now_s = utc_s("2026-11-21T23:59:58")
    assert due_time(every_second, after_s=now_s - 90 * 86_400, now_s=now_s, window=ANY) == now_s
    last_year = parse("cron(* * * * * ? 2025)")
    assert due_time(last_year, after_s=0.0, now_s=now_s, window=ANY) == utc_s("2025-12-31T23:59:59")
    # The second pass of the hour that comes twice: its times ran in the first one.
    zone = "Europe/Berlin"
    assert following("cron(* * * * * ? *)", "2026-10-25T01:00:01", zone) == "2026-10-25T02:00:00"


def test_only_days_until_now_are_searched():
    cron = parse_cron("0 0 ? * 2#5 *")
    assert cron.next_local(NEW_YEAR, last=date(2026, 3, 1)) is None
    never = parse("cron(0 0 30 2 ? *)")
    assert due_time(never, after_s=0.0, now_s=utc_s("2026-01-01T00:00:00"), window=ANY) is None
    ended = Window(created_s=0.0, end_s=utc_s("0001-01-01T00:00:00"))
    assert next_time(never, after_s=0.0, window=ended) is None


@given(
    st.sampled_from(["cron(0/7 * * * ? *)", "cron(13 30 2 * * ? *)", "cron(* 0 * * ? *)", "rate(11 minutes)"]),
    st.floats(0, 86_400),
    st.floats(0, 90_000),
    st.none() | st.floats(0, 86_400),
    st.none() | st.floats(0, 86_400),
    ZONES,
)
def test_the_last_time_until_now_is_due(expression, after_s, downtime_s, start_s, end_s, zone):
    day_s = utc_s("2026-10-24T22:00:00")  # in Berlin the hour from 2 to 3 comes twice
    bounds = [None if bound_s is None else day_s + bound_s for bound_s in (start_s, end_s)]
    window = Window(created_s=day_s - 100.5, start_s=bounds[0], end_s=bounds[1])
    schedule, now_s = parse(expression, zone), day_s + after_s + downtime_s
    wanted, time_s = None, next_time(schedule, after_s=day_s + after_s, window=window)
    while time_s is not None and time_s <= now_s:
        wanted, time_s = time_s, next_time(schedule, after_s=time_s, window=window)
    assert due_time(schedule, after_s=day_s + after_s, now_s=now_s, window=window) == wanted
