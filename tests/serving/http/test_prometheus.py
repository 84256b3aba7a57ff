"""Metrics of several models or gateways on one page."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.serving.http.prometheus import merge_families


def counter(model: str, value: float) -> Metric:
    family = CounterMetricFamily("calls", "Calls.", labels=["model"])
    family.add_metric([model], value)
    return family


def test_each_metric_is_declared_once_and_equal_samples_are_added_up() -> None:
    merged = list(merge_families([counter("a", 1), counter("b", 2), counter("a", 4)]))

    assert [family.name for family in merged] == ["calls"]
    assert [(sample.labels["model"], sample.value) for sample in merged[0].samples] == [("a", 5), ("b", 2)]


def test_a_metric_keeps_the_type_that_it_had_first() -> None:
    gauge = GaugeMetricFamily("calls", "Calls.", value=3)

    (family,) = merge_families([counter("a", 1), gauge])

    assert (family.type, len(family.samples)) == ("counter", 1)
