"""The pure parts of the soak: drift, verdicts and the picture, and what it reads from /proc and the disk."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import pytest
from benchmarks.harness.proc import processes_with, read_process, read_processes
from benchmarks.soak.drift import Point, drift, window_medians
from benchmarks.soak.load import Activity, Load, Unexpected, until
from benchmarks.soak.picture import DARK, LIGHT, Picture, svg
from benchmarks.soak.series import MIB, RULES, WATCHED_FILE, Rule, Series, as_json, judge, table
from benchmarks.soak.target import size_bytes
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import WAIT_S

values = st.floats(1, 1e9)
MEMORY = RULES["rss"]


def line(level: float, growth: float, count: int = 24) -> list[Point]:
    """Medians that grow by `growth`, as a share of the first one, from the first to the last."""
    return [(60.0 * number, level * (1 + growth * number / (count - 1))) for number in range(count)]


@given(values, st.floats(-0.5, 2.0), st.integers(3, 40))
def test_a_straight_line_drifts_by_its_growth(level: float, growth: float, count: int) -> None:
    found = drift(line(level, growth, count))
    assert found is not None
    assert found.change == pytest.approx(level * growth, abs=1e-6 * level)
    assert found.at_least - 1e-6 * level <= found.change <= found.at_most + 1e-6 * level


@given(st.lists(values, min_size=3, max_size=30), st.floats(0.1, 10), st.floats(-1e6, 1e6))
def test_drift_follows_the_unit_and_ignores_an_offset(points: list[float], factor: float, offset: float) -> None:
    found = drift([(float(number), value) for number, value in enumerate(points)])
    scaled = drift([(60.0 * number, factor * value + offset) for number, value in enumerate(points)])
    assert found is not None
    assert scaled is not None
    tolerance = 1e-6 * (factor * max(points) + abs(offset))
    assert scaled.change == pytest.approx(factor * found.change, abs=tolerance)
    assert scaled.at_least == pytest.approx(factor * found.at_least, abs=tolerance)


@given(st.integers(0, 2**32), st.sets(st.integers(0, 23), max_size=5))
def test_a_fifth_of_wild_windows_makes_no_growth(seed: int, wild: set[int]) -> None:
    random = Random(seed)
    points = [
        (60.0 * number, 1e9 * (random.uniform(1, 9) if number in wild else random.uniform(0.9999, 1.0001)))
        for number in range(24)
    ]
    found = drift(points)
    assert found is not None
    assert not found.is_growth()


def hour_of(shape: Callable[[float], float], *, noise_mib: float, seed: int = 0) -> Series:
    """Return an hour of samples, one every ten seconds; `shape` gives MiB by minute."""
    random = Random(seed)
    points = [
        (t, MIB * (shape(t / 60) + random.uniform(-noise_mib, noise_mib))) for t in map(float, range(0, 3600, 10))
    ]
    return Series(name="rss", rule=MEMORY, points=points)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("shape", "verdict"),
    [
        pytest.param(lambda minute: 135 + 0.36 * minute, "grows", id="a leak of 0.36 MiB a minute"),
        pytest.param(lambda minute: 135 + 8 * (minute > 37), "grows", id="one step in the middle"),
        pytest.param(lambda minute: 135, "level", id="noise alone"),
        pytest.param(lambda minute: 135 + 6 * (minute % 10) / 10, "level", id="growth that a trim takes back"),
        pytest.param(lambda minute: 135 + 100 * min(1, minute / 14), "level", id="a cache full after the warm-up"),
        pytest.param(lambda minute: 135 + 40 * (minute > 58), "level", id="a burst in the last two minutes"),
        pytest.param(lambda minute: 135 - 0.3 * minute, "level", id="a process that shrinks"),
    ],
)
def test_an_hour_is_judged_by_its_trend(shape: Callable[[float], float], verdict: str, seed: int) -> None:
    series = hour_of(shape, noise_mib=4, seed=seed)
    assert judge(series, from_s=900, to_s=3600).verdict == verdict


def test_growth_that_chance_explains_is_level() -> None:
    heights = [5, 1, 9, 2, 8, 3, 7, 4]
    found = drift([(60.0 * number, 100.0 + height) for number, height in enumerate([*heights, *heights, 9, 9])])
    assert found is not None
    assert found.change > 2
    assert found.at_least <= 0
    assert not found.is_growth()


@given(st.lists(values, min_size=3, max_size=30))
def test_the_interval_contains_the_change(points: list[float]) -> None:
    found = drift([(float(number), value) for number, value in enumerate(points)])
    assert found is not None
    assert found.at_least <= found.change <= found.at_most


@given(st.sets(st.integers(0, 23), max_size=16), st.floats(0.03, 1))
def test_windows_without_samples_do_not_hide_growth(missing: set[int], growth: float) -> None:
    kept = [point for number, point in enumerate(line(200 * MIB, growth)) if number not in missing]
    found = drift(kept)
    assert found is not None
    span = (kept[-1][0] - kept[0][0]) / (60.0 * 23)
    assert found.change == pytest.approx(200 * MIB * growth * span)
    assert found.at_least > 0


def test_fewer_than_three_windows_have_no_drift() -> None:
    assert drift(line(1, 1, 2)) is None


def test_a_series_that_begins_at_zero_drifts_infinitely() -> None:
    found = drift([(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 2)])
    assert found is not None
    assert math.isfinite(found.change)
    assert drift([(0, 0), (1, 0), (2, 0)]).share == 0  # type: ignore[union-attr]


@given(st.lists(st.tuples(st.floats(0, 100), values), max_size=50), st.integers(1, 20))
def test_each_window_has_the_median_of_its_own_points(points: list[Point], count: int) -> None:
    found = window_medians(points, from_s=20, to_s=80, count=count)
    inside = [value for time_s, value in points if 20 <= time_s <= 80]
    assert len(found) <= min(count, len(inside))
    assert all(min(inside) <= value <= max(inside) and 20 <= time_s <= 80 for time_s, value in found)
    assert [time_s for time_s, _ in found] == sorted(time_s for time_s, _ in found)


@pytest.mark.parametrize(
    ("rule", "level", "growth", "verdict"),
    [
        (MEMORY, 200 * MIB, 0.03, "grows"),
        (MEMORY, 200 * MIB, 0.01, "level"),
        (MEMORY, 200 * MIB, -0.5, "level"),
        (MEMORY, 10 * MIB, 0.05, "level"),
        (RULES["descriptors"], 20, 0.04, "level"),
        (RULES["descriptors"], 20, 0.2, "grows"),
        (WATCHED_FILE, MIB, 9, "watched"),
        (Rule(unit="bytes", bound=4 * MIB), MIB, 2, "bounded"),
        (Rule(unit="bytes", bound=4 * MIB), MIB, 9, "over its bound"),
    ],
)
def test_a_verdict_needs_growth_over_the_goal_and_the_resolution(
    rule: Rule, level: float, growth: float, verdict: str
) -> None:
    series = Series(name="s", rule=rule, points=line(level, growth))
    found = judge(series, from_s=0, to_s=60.0 * 23)
    assert found.verdict == verdict
    assert found.is_failure == (verdict in ("grows", "over its bound"))


def test_growth_during_the_warm_up_does_not_count() -> None:
    warm_up = [(float(second), second * MIB) for second in range(60)]
    series = Series(name="worker rss", rule=MEMORY, points=[*warm_up, *((60.0 + n, 60.0 * MIB) for n in range(60))])
    assert judge(series, from_s=60, to_s=120).verdict == "level"
    assert judge(series, from_s=0, to_s=60).verdict == "grows"


def test_the_table_and_the_picture_name_each_series_and_its_verdict() -> None:
    series = [
        Series(name="worker rss", rule=MEMORY, points=line(200 * MIB, 0.5)),
        Series(name="<log> & more", rule=WATCHED_FILE, points=line(MIB, 0.0)),
    ]
    findings = [judge(one_series, from_s=0, to_s=1380) for one_series in series]
    page = table(findings, hours=0.5)
    assert "| worker rss | 250.0 MiB | 300.0 MiB |" in page
    assert "| **grows** |" in page
    result = {
        "minutes": 23,
        "warm_up_minutes": 5,
        "target": "platform",
        "series": {finding.name: as_json(finding) for finding in findings},
        "samples": {"worker rss": series[0].points},
    }
    for theme in (LIGHT, DARK):
        drawn = ET.fromstring(svg(Picture.of(result), theme))
        texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
        assert {"worker rss", "<log> & more"} <= set(texts)
        assert theme["bad"] in {element.get("stroke") for element in drawn.iter()}


def test_a_process_is_found_by_its_environment_and_read_from_proc(tmp_path: Path) -> None:
    folder = tmp_path / "17"
    (folder / "fd").mkdir(parents=True)
    (folder / "fd" / "0").touch()
    (folder / "cmdline").write_bytes(b"weed\0mini")
    (folder / "environ").write_bytes(b"HOME=/\0PLACE=/data/soak\0")
    (folder / "stat").write_text("17 (a b) c) " + " ".join(str(number) for number in range(30)))
    (folder / "smaps_rollup").write_text("header\nRss: 300 kB\nPss: 200 kB\nAnonymous: 150 kB\n")
    (folder / "status").write_text("Name:\tx\nVmHWM:\t 400 kB\n")
    assert processes_with("/data/soak", in_environment=True, proc=tmp_path) == {17: "weed mini"}
    assert processes_with("/data/other", in_environment=True, proc=tmp_path) == {}
    assert processes_with("/data/soak", proc=tmp_path) == {}
    use = read_process(17, proc=tmp_path)
    assert use is not None
    assert (use.rss_bytes, use.pss_bytes, use.anonymous_bytes) == (300 * 1024, 200 * 1024, 150 * 1024)
    assert use.peak_rss_bytes == 400 * 1024
    assert (use.descriptors, use.threads) == (1, 17)
    assert use.cpu_s == pytest.approx((11 + 12) / os.sysconf("SC_CLK_TCK"))
    assert read_process(18, proc=tmp_path) is None


def test_this_process_has_memory_and_descriptors() -> None:
    use = read_processes([os.getpid(), 2**30])
    assert use.rss_bytes >= use.pss_bytes > 0
    assert use.descriptors > 0
    assert use.threads > 0


def test_sizes_are_those_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path)
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    assert 5001 <= size_bytes(tmp_path) < 1 << 20
    assert size_bytes(tmp_path / "nothing") == 0


def test_a_load_counts_what_ends_well_and_names_what_does_not() -> None:
    def fail(_random: Random) -> None:
        raise Unexpected("no answer")

    activities = [
        Activity(name="good", pause_s=0.001, act=lambda random: None),
        Activity(name="bad", pause_s=0.001, act=fail),
    ]
    load = Load(activities, seed=0, pace=1)
    load.start()
    until(lambda: load.counts["good"] > 1 and load.num_failures > 60, "both have run", timeout_s=WAIT_S, poll_s=0.001)
    load.stop()
    assert len(load.failures) == 50
    assert "bad: Unexpected('no answer')" in load.failures[0]
    assert len(load.latencies()["good"]) == load.counts["good"]
    assert load.latencies()["bad"] == []
