"""Metric math."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cloudwatch.math.queries import Query, evaluate, query_from_json
from headrace.cloudwatch.math.syntax import BadExpression
from headrace.cloudwatch.metrics.metric import Metric
from headrace.cloudwatch.series.memory import MemorySeries

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
