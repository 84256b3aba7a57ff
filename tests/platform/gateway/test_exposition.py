"""The metrics in Prometheus' format."""

from prometheus_client.parser import text_string_to_metric_families

from headrace.platform.gateway.metrics import GatewayMetrics, InvocationLabels, InvocationRecord, merge, render


def record(**facts) -> InvocationRecord:
    return InvocationRecord(
        request_id="r", api="InvokeEndpoint", endpoint="ep", **{"started_s": 1.0, "ended_s": 3.0, **facts}
    )


def samples(metrics: GatewayMetrics) -> dict[str, float]:
    """Return the values by name and non-empty label values."""
    names = ("endpoint", "variant", "component", "error", "le")
    return {
        " ".join([sample.name, *(value for name in names if (value := sample.labels.get(name)))]): sample.value
        for family in text_string_to_metric_families(render(metrics).decode())
        for sample in family.samples
    }


def test_requests_are_counted_by_endpoint_and_variant():
    metrics = GatewayMetrics()
    metrics.in_flight = 3
    metrics.count(record(variant="a", status=200, asked_s=1.25, first_s=2.0, num_tries=2))
    metrics.count(record(variant="a", status=424, asked_s=1.5, error="ModelError", num_tries=1))
    metrics.count(record(variant="b", status=200, asked_s=1.5, error="StreamBroken", num_tries=1))
    metrics.count(record(variant="b", status=499, asked_s=1.5, is_gone=True, num_tries=1))
    metrics.count(record(status=400, error="ValidationError"))
    seen = samples(metrics)
    assert seen["headrace_gateway_requests_in_flight"] == 3
    assert seen["headrace_gateway_invocations_total ep a"] == 2
    assert seen["headrace_gateway_model_errors_total ep a"] == 1
    assert seen["headrace_gateway_errors_4xx_total ep a"] == 1
    assert seen["headrace_gateway_errors_4xx_total ep b"] == 0
    assert seen["headrace_gateway_retries_total ep a"] == 1
    assert seen["headrace_gateway_streams_broken_total ep b"] == 1
    assert seen["headrace_gateway_clients_gone_total ep b"] == 1
    assert seen["headrace_gateway_refused_total ValidationError"] == 1
    assert seen["headrace_gateway_model_seconds_sum ep a"] == 1.75 + 1.5
    assert seen["headrace_gateway_overhead_seconds_sum ep a"] == 0.25 + 0.5
    assert seen["headrace_gateway_first_part_seconds_count ep a"] == 1


def test_an_inference_component_is_counted_separately_from_its_variant():
    metrics = GatewayMetrics()
    for component in ("", "one", "two", "two"):
        metrics.count(record(variant="a", component=component, status=200, asked_s=1.5))
    seen = samples(metrics)
    counts = [seen[f"headrace_gateway_invocations_total ep a{component}"] for component in ("", " one", " two")]
    assert counts == [1, 1, 2]
    assert seen["headrace_gateway_model_seconds_count ep a two"] == 2


def test_an_unknown_component_becomes_no_label():
    metrics = GatewayMetrics()
    metrics.count(record(component="made-up", status=400, error="ValidationError"))
    assert not list(metrics.counters())


def test_counters_of_deleted_endpoints_are_dropped():
    metrics = GatewayMetrics()
    for component in ("", "stays", "goes"):
        metrics.count(record(variant="a", component=component, status=200))
    metrics.retain({InvocationLabels("ep", "a", ""), InvocationLabels("ep", "a", "stays")})
    assert [place.component for place, _ in metrics.counters()] == ["", "stays"]
    metrics.retain(set())
    assert not list(metrics.counters())


def test_pages_of_several_gateways_are_summed() -> None:
    first, second = GatewayMetrics(), GatewayMetrics()
    first.in_flight, second.in_flight = 2, 3
    first.refused["Throttled"], second.refused["Other"] = 1, 4
    page = merge([render(first), render(second)]).decode()
    assert "headrace_gateway_requests_in_flight 5.0" in page
    assert 'headrace_gateway_refused_total{error="Throttled"} 1.0' in page
    assert 'headrace_gateway_refused_total{error="Other"} 4.0' in page
    assert merge([render(first)]) == render(first)
