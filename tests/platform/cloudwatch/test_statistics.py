"""One number of a point."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.cloudwatch.metrics.metric import MAX_VALUES, Bucket, Point
from headrace.platform.cloudwatch.metrics.statistics import is_statistic, statistic


def point_of(*values: float) -> Point:
    bucket = Bucket()
    for value in values:
        bucket.add(value, 1.0)
    return bucket.point(0.0, "None")


HUNDRED = point_of(*[float(value) for value in range(1, 51)], *[float(value) for value in range(51, 101)])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("SampleCount", 4.0),
        ("Sum", 10.0),
        ("Average", 2.5),
        ("Minimum", 1.0),
        ("Maximum", 4.0),
        ("p0", 1.0),
        ("p50", 2.0),
        ("p75", 3.0),
        ("p99.9", 4.0),
        ("p100", 4.0),
        ("tm75", 2.0),
        ("tc75", 3.0),
        ("ts75", 6.0),
        ("wm75", 2.25),
        ("IQM", 2.5),
        ("TM(25%:75%)", 2.5),
        ("TM(1:3)", 2.5),
        ("TC(:2)", 2.0),
        ("TS(2:)", 7.0),
        ("PR(:3)", 75.0),
        ("PR(1:2)", 25.0),
        ("WM(2:3)", 2.5),
    ],
)
def test_each_statistic_of_the_values_1_to_4(name: str, wanted: float) -> None:
    assert statistic(point_of(4.0, 2.0, 1.0, 3.0), name) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "name",
    ["", "average", "p", "p101", "p-1", "tm(1:2)", "TM(2:1)", "TM(:)", "TM(1%:2)", "TM(%:2)", "PR(1%:2%)", "p9٣"],
)
def test_an_unknown_statistic_is_refused(name: str) -> None:
    assert not is_statistic(name)
    with pytest.raises(ValueError, match="expected one of"):
        statistic(point_of(1.0), name)


def test_a_trimmed_mean_without_values_between_its_bounds_is_none() -> None:
    assert statistic(point_of(1.0), "TM(5:6)") is None


def test_negative_values_have_no_percentiles() -> None:
    without = Point(start_s=0, count=2, total=3, minimum=1, maximum=2)
    assert statistic(without, "p50") is None
    assert statistic(without, "Average") == 1.5
    assert statistic(point_of(-1.0, 1.0), "p50") is None


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=400), st.sampled_from([1.0, 50.0, 90.0, 99.0]))
def test_a_percentile_of_many_values_is_within_the_extremes_and_counts_stay_exact(
    values: list[float], percent: float
) -> None:
    point = point_of(*values)
    found = statistic(point, f"p{percent}")
    assert found is not None
    assert min(values) * (1 - 1e-9) <= found <= max(values) * (1 + 1e-9)
    assert point.count == pytest.approx(len(values))
    assert sum(count for _, count in point.values) == pytest.approx(len(values))
    assert sum(value * count for value, count in point.values) == pytest.approx(sum(values))
    assert len(point.values) <= MAX_VALUES


def test_percentiles_of_latencies_over_one_decade_are_accurate_within_a_few_percent() -> None:
    point = point_of(*[1000.0 * 1.001**number for number in range(2303)])
    for percent in (10, 50, 90, 99):
        exact = 1000.0 * 1.001 ** (2303 * percent / 100)
        assert statistic(point, f"p{percent}") == pytest.approx(exact, rel=0.1)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=100), st.integers(0, 100))
def test_merging_two_parts_equals_measuring_all_at_once(values: list[float], cut: int) -> None:
    whole, merged = Bucket(), Bucket()
    for value in values:
        whole.add(value, 1.0)
    for part in (values[:cut], values[cut:]):
        merged.merge(point_of(*part))
    assert merged.count == whole.count
    assert merged.total == pytest.approx(whole.total)
    assert (merged.minimum, merged.maximum) == (whole.minimum, whole.maximum)
    assert sum(count for _, count in merged.values()) == pytest.approx(len(values))


def test_merging_a_part_with_unknown_values_makes_them_unknown() -> None:
    bucket = Bucket()
    bucket.add(1.0, 1.0)
    bucket.merge(Point(start_s=0, count=2, total=3, minimum=1, maximum=2))
    assert bucket.values() == ()
    assert (bucket.count, bucket.total) == (3, 4)
    bucket.add(7.0, 1.0)
    assert bucket.count == 4
