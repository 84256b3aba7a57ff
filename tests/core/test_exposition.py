"""The pages for Prometheus, by the rules of `promtool check metrics`; with promtool itself, where it is installed."""

import re
import shutil
import subprocess
from collections.abc import Iterable

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.exposition import generate_latest as render_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from headrace.core import exposition
from headrace.core.engine_stats import EngineStats
from headrace.core.metrics import Metrics
from headrace.core.telemetry import RequestRecord
from headrace.platform.gateway import metrics as gateway_exposition
from headrace.platform.gateway.metrics import GatewayMetrics, InvocationRecord
from headrace.testing.echo import EchoBackend

OTHERS = ("vllm:", "tgi_")
"""Prefixes of names that those servers have fixed, whatever promtool says about them."""
FORBIDDEN = re.compile(
    r"_(?:milliseconds|microseconds|nanoseconds|minutes|hours|days|percent|kilobytes|megabytes|gigabytes|ms|us|mib)(?:_|$)"
    r"|^headrace_.*(?:gauge|counter|histogram|summary)|[A-Z:]"
)
"""Units that are no base units, and names that repeat their type or break the case. Source: prometheus `promlint`."""


def server_page() -> str:
    metrics = Metrics(stats=EngineStats, info=lambda: EchoBackend().info, in_flight=lambda: 1, adapters=lambda: ["a"])
    record = RequestRecord(
        request_id="r", route="/x", dialect="tgi", started_s=0.0, status=200, first_s=0.1, last_s=0.2, ended_s=0.3
    )
    metrics.count(record)
    return exposition.render(metrics).decode()


def gateway_page() -> str:
    metrics = GatewayMetrics()
    record = InvocationRecord(
        request_id="r", api="InvokeEndpoint", endpoint="ep", variant="v", started_s=1.0, asked_s=1.5, ended_s=3.0
    )
    metrics.count(record)
    return gateway_exposition.render(metrics).decode()


PAGES = {"server": server_page, "gateway": gateway_page}


@pytest.mark.parametrize("page", PAGES)
def test_names_follow_prometheus_rules(page: str) -> None:
    families = list(text_string_to_metric_families(PAGES[page]()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    for family in families:
        assert family.documentation, family.name
        if family.name.startswith(OTHERS):
            continue
        assert not FORBIDDEN.search(family.name), family.name
        samples = {sample.name for sample in family.samples}
        if family.type == "counter":
            assert all(name.endswith("_total") for name in samples), family.name
        else:
            assert not family.name.endswith(("_total", "_count", "_sum", "_bucket", "_info")) or (
                family.name == "headrace_model_info"
            )


class Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        return self.families


@pytest.mark.parametrize("page", PAGES)
def test_values_pass_the_strict_parser_of_openmetrics(page: str) -> None:
    """The parser of the text format takes what Prometheus refuses, such as a histogram that decreases."""
    text = PAGES[page]().replace("vllm:", "vllm_")  # OpenMetrics escapes a colon
    families = list(text_string_to_metric_families(text))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families(families))
    parsed = list(parse_openmetrics(render_openmetrics(registry).decode()))
    assert [(family.name, family.type) for family in parsed] == [(family.name, family.type) for family in families]


@pytest.mark.parametrize("page", PAGES)
def test_promtool_complains_only_about_names_that_other_servers_have_fixed(page: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run([promtool, "check", "metrics"], input=PAGES[page](), capture_output=True, text=True)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith(OTHERS)]
    assert not complaints
