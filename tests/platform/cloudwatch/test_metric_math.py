"""Metric math."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.cloudwatch.math.queries import Query, evaluate, query_from_json
from headrace.platform.cloudwatch.math.syntax import BadExpression
from headrace.platform.cloudwatch.math.values import TimeSeries, fill
from headrace.platform.cloudwatch.metrics.metric import Metric, Point
from headrace.platform.cloudwatch.series.memory import MemorySeries

T0 = 1_700_000_040.0


def series_of(**values: list[float | None]) -> tuple[MemorySeries, list[Query]]:
    """One value a minute, None for a gap; a metric and a query for each name."""
    series, queries = MemorySeries(), []
    for name, minutes in values.items():
        metric = Metric(namespace="n", name=name)
        for number, value in enumerate(minutes):
            if value is not None:
                series.put(metric, value, now_s=T0 + 60 * number)
        queries.append(Query(id=name, metric=metric, is_returned=False))
    return series, queries


def result(expression: str, **values: list[float | None]) -> list[float | None]:
    """Return the value of an expression in each minute."""
    series, queries = series_of(**values)
    requested = [*queries, Query(id="e", expression=expression)]
    (line,) = evaluate(requested, series.read, start_s=T0, end_s=T0 + 240)["e"]
    found = dict(line.points)
    return [found.get(T0 + 60 * number) for number in range(4)]


M: dict[str, list[float | None]] = {"m1": [1, 2, None, 4], "m2": [10, 0, 30, 40]}


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("m1", [1, 2, None, 4]),
        ("m1 + m2", [11, 2, None, 44]),
        ("m2 - m1 * 2", [8, -4, None, 32]),
        ("(m2 - m1) * 2", [18, -4, None, 72]),
        ("100 * m1 / m2", [10, None, None, 10]),
        ("-m1 ^ 2", [-1, -4, None, -16]),
        ("2 ^ 3 ^ 2 * m1", [512, 1024, None, 2048]),
        ("m1 > 1", [0, 1, None, 1]),
        ("m1 >= 2 AND m2 > 0", [0, 0, None, 1]),
        ("m1 >= 2 || m2 > 0", [1, 1, None, 1]),
        ("m1 != 2", [1, 0, None, 1]),
        ("IF(m2 > 5, m1, 0)", [1, 0, None, 4]),
        ("IF(m2 > 5, m2)", [10, None, 30, 40]),
        ("IF(1, m1, m2)", [1, 2, None, 4]),
        ("FILL(m1, 0)", [1, 2, 0, 4]),
        ("FILL(m1, REPEAT)", [1, 2, 2, 4]),
        ("fill(m1, linear)", [1, 2, 3, 4]),
        ("FILL(m1, m2)", [1, 2, 30, 4]),
        ("FILL(m1, 0) / FILL(m2, 1)", [0.1, None, 0, 0.1]),
        ("SUM([m1, m2])", [11, 2, 30, 44]),
        ("SUM(METRICS())", [11, 2, 30, 44]),
        ('AVG(METRICS("m"))', [5.5, 1, 30, 22]),
        ("MAX([m1, m2])", [10, 2, 30, 40]),
        ("MIN([m1, m2])", [1, 0, 30, 4]),
        ("m2 / SUM(m1)", [10 / 7, 0, 30 / 7, 40 / 7]),
        ("m2 - MIN(m2)", [10, 0, 30, 40]),
        ("m2 * AVG(m2)", [200, 0, 600, 800]),
        ("SUM([m1 * 10, -m2])", [0, 20, -30, 0]),
        ("RATE(m2) * 60", [None, -10, 30, 10]),
        ("DIFF(m1)", [None, 1, None, 2]),
        ("m2 / PERIOD(m2)", [10 / 60, 0, 0.5, 40 / 60]),
        ("ABS(0 - m1)", [1, 2, None, 4]),
        ("CEIL(m1 / 3) + FLOOR(m1 / 3)", [1, 1, None, 3]),
        ("LOG10(m2)", [1, None, pytest.approx(1.4771, abs=1e-4), pytest.approx(1.602, abs=1e-3)]),
    ],
)
def test_each_rule_on_two_series_with_a_gap(expression: str, wanted: list[float | None]) -> None:
    found = result(expression, **M)
    assert [value is None for value in found] == [value is None for value in wanted], found
    assert [v for v in found if v is not None] == pytest.approx([v for v in wanted if v is not None])


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "unexpected end"),
        ("m1 +", "unexpected end"),
        ("m1 m2", "unexpected"),
        ("(m1", "unexpected end"),
        ("m1 $ 2", "cannot be parsed from"),
        ("m9", "no query with the id 'm9'"),
        ("e + 1", "refers to itself"),
        ("1 + 1", "not a time series"),
        ("SUM(m1)", "not a time series"),
        ("SEARCH('x', 'Sum', 60)", "SEARCH is not supported"),
        ('SELECT AVG(CPUUtilization) FROM "AWS/SageMaker"', "Metrics Insights queries"),
        ("RATE(m1, 2)", "does not take these 2"),
        ("FILL(m1, NEVER)", "no query"),
        ("METRICS(3)", "in quotes"),
        ("'a' + m1", "A text"),
        ("[m1, 2]", "only contain time series"),
        ("(" * 60 + "m1" + ")" * 60, "nested deeper"),
        ("-" * 60 + "m1", "nested deeper"),
        ("m1" + "+m1" * 60, "nested deeper"),
        ("m1+" * 1000 + "m1", "characters"),
        ("1 / 0 + m1", "not a number"),
        ("FILL(m1, 1e999)", "The number 1e999 is too large"),
        ("[" + "m1," * 500 + "m1]", "more than 500 time series"),
    ],
)
def test_bad_expressions_are_refused_with_a_reason(expression: str, words: str) -> None:
    with pytest.raises(BadExpression, match=words.replace("(", r"\(")):
        result(expression, **M)


def test_expressions_can_refer_to_expressions_and_a_list_has_several_series() -> None:
    series, queries = series_of(**M)
    requested = [
        *queries,
        Query(id="both", expression="METRICS() * 2"),
        Query(id="e", expression="SUM(both)", label="All"),
    ]
    found = evaluate(requested, series.read, start_s=T0, end_s=T0 + 60)
    assert [line.points for line in found["both"]] == [((T0, 2.0),), ((T0, 20.0),)]
    assert [(line.label, line.points) for line in found["e"]] == [("All", ((T0, 22.0),))]


def test_series_without_values_give_results_without_values() -> None:
    for expression in ("m1 / SUM(m1)", "m1 + m2", "SUM(METRICS())", "IF(m1, m2)", "RATE(m1)"):
        assert result(expression, m1=[], m2=[]) == [None] * 4
    assert result("FILL(m1, 0)", m1=[]) == [0] * 4


def test_an_aggregate_too_large_for_a_number_gives_no_values() -> None:
    assert result("SUM([m1 * 1e308, m1 * 1e308])", m1=[1, 0.1]) == [None, pytest.approx(2e307), None, None]
    assert result("m1 / SUM(m1 * 1e308)", m1=[1, 1]) == [None] * 4


def test_a_change_too_large_for_a_number_gives_no_value() -> None:
    values: list[float | None] = [-1, None, 1, 0]
    assert result("DIFF(m1 * 1.5e308)", m1=values) == [None, None, None, -1.5e308]
    assert result("FILL(m1 * 1.5e308, LINEAR)", m1=values) == [-1.5e308, None, 1.5e308, 0]


def refused(*expressions: str, **values: list[float | None]) -> str:
    """Return the reason why expressions e0, e1, ... are refused."""
    series, queries = series_of(**values)
    requested = [*queries, *(Query(id=f"e{i}", expression=text) for i, text in enumerate(expressions))]
    with pytest.raises(BadExpression) as caught:
        evaluate(requested, series.read, start_s=T0, end_s=T0 + 60 * 100_000)
    return str(caught.value)


def test_the_series_of_a_chain_of_lists_are_bounded() -> None:
    names = ",".join(["m1"] * 400)
    assert "more than 500 time series" in refused(f"[{names}]", "[e0, e0]", m1=[1])
    halves = [f"[{names}]", *(f"[{','.join([f'e{i}'] * 400)}]" for i in range(20))]
    assert "more than 500 time series" in refused(*halves, m1=[])


@pytest.mark.parametrize(
    "expressions",
    [
        ["FILL([" + ",".join(["m1"] * 20) + "], 0)"],
        ["FILL(m1, 0)", *["e0 + e0"] * 9],
        ["FILL(m1, 0)", "[" + ",".join(["m1"] * 20) + "]", "e1 * e0"],
        ["[" + ",".join(["m1"] * 400) + "]", "e0" + " + SUM(e0)" * 30, *["e1 + SUM(e0)" + " + SUM(e0)" * 30] * 60],
    ],
)
def test_the_points_that_a_call_computes_with_are_bounded(expressions: list[str]) -> None:
    assert "more than 1,008,000 datapoints" in refused(*expressions, m1=[1, 2, 3, 4])


def test_searches_for_metrics_count_as_computed_points() -> None:
    searches = "[" + ",".join(["METRICS()"] * 100) + "]"
    assert "more than 1,008,000 datapoints" in refused(*[searches] * 300)


def test_an_expression_without_values_is_evaluated_once() -> None:
    series, queries = series_of(m1=[])
    costly = f"SUM([{','.join(['m1'] * 200)}])"
    chain = [Query(id=f"e{i}", expression=f"{costly} * e{min(i - 1, 20)}") for i in range(1, 300)]
    requested = [*queries, Query(id="e0", expression="m1 * SUM(m1)"), *chain]
    found = evaluate(requested, series.read, start_s=T0, end_s=T0 + 60)
    assert [line.points for (line,) in found.values()] == [()] * 300


def test_the_points_that_a_call_reads_are_bounded() -> None:
    num_read, num_minutes, period_s = 0, 20_000, 61 * 60

    def read(metric: Metric, *, start_s: float, end_s: float, period_s: int) -> list[Point]:
        nonlocal num_read
        num_read += num_minutes
        times = range(0, 60 * num_minutes, period_s)
        return [Point(start_s=at_s, count=1.0, total=1.0, minimum=1.0, maximum=1.0) for at_s in times]

    # A period of 61 minutes aggregates points of one minute.
    queries = [Query(id=f"m{i}", metric=Metric(namespace="n", name="m"), period_s=period_s) for i in range(500)]
    with pytest.raises(BadExpression, match="more than 1,008,000 datapoints"):
        evaluate(queries, read, start_s=0.0, end_s=60.0 * num_minutes)
    assert num_read <= 1_100_000


@pytest.mark.parametrize(("opening", "closing"), [("-", ""), ("abs(", ")"), ("[", "]")])
def test_a_chain_of_deep_expressions_is_refused_for_its_depth(opening: str, closing: str) -> None:
    names = [*(f"e{i}" for i in range(1, 40)), "m1"]
    chain = [opening * 39 + name + closing * 39 for name in names]
    assert "nested deeper than 150 levels" in refused(*chain, m1=[1, 2])


def test_a_long_chain_of_short_expressions_is_evaluated() -> None:
    series, queries = series_of(m1=[1])
    chain = [Query(id=f"e{i}", expression=f"e{i - 1} + 1" if i else "m1") for i in range(49)]
    found = evaluate([*queries, *chain[::-1]], series.read, start_s=T0, end_s=T0 + 60)
    assert found["e48"][0].points == ((T0, 49.0),)


@given(st.lists(st.none() | st.floats(-100, 100), min_size=4, max_size=4))
def test_linear_filling_interpolates_between_the_neighbours(values: list[float | None]) -> None:
    expected = list(values)
    known = [i for i, value in enumerate(values) if value is not None]
    for before, after in pairwise(known):
        start, stop = values[before], values[after]
        assert start is not None
        assert stop is not None
        for i in range(before + 1, after):
            expected[i] = start + (stop - start) * (i - before) / (after - before)
    found = result("FILL(m1, LINEAR)", m1=values)
    assert [value is None for value in found] == [value is None for value in expected]
    assert [v for v in found if v is not None] == pytest.approx([v for v in expected if v is not None])


def test_linear_filling_of_as_many_points_as_a_call_may_have() -> None:
    times = [(60.0 * number, float(number)) for number in range(0, 100_000, 2)]
    series = TimeSeries(label="m", period_s=60, points=tuple(times))
    filled = fill(series, filling="LINEAR", start_s=0.0, end_s=60.0 * 99_999)
    assert isinstance(filled, TimeSeries)
    assert filled.points == tuple((60.0 * number, float(number)) for number in range(99_999))


def test_a_metric_data_query_is_parsed_from_the_api_form() -> None:
    dimensions = [{"Name": "b", "Value": "2"}, {"Name": "a", "Value": "1"}]
    metric = {"Namespace": "n", "MetricName": "m", "Dimensions": dimensions}
    stat = {"Metric": metric, "Period": 10, "Stat": "p90", "Unit": "Count"}
    query = query_from_json({"Id": "q", "MetricStat": stat, "ReturnData": False})
    assert query.metric == Metric(namespace="n", name="m", dimensions=(("a", "1"), ("b", "2")))
    assert (query.statistic, query.period_s, query.unit, query.is_returned) == ("p90", 10, "Count", False)
    assert query_from_json({"Id": "e", "Expression": "q*2", "Label": "x"}).label == "x"


def test_points_with_another_unit_are_ignored() -> None:
    series, _ = series_of(m1=[1.0])
    query = Query(id="q", metric=Metric(namespace="n", name="m1"), unit="Seconds")
    assert evaluate([query], series.read, start_s=T0, end_s=T0 + 60)["q"][0].points == ()


@given(st.text("m12+-*/^()[],<>=!&|IFSUM \"'.eE", max_size=40))
def test_any_text_is_evaluated_or_refused_as_a_bad_expression(expression: str) -> None:
    series, queries = series_of(**M)
    requested = [*queries, Query(id="e", expression=expression)]
    with suppress(BadExpression):
        evaluate(requested, series.read, start_s=T0, end_s=T0 + 240)
