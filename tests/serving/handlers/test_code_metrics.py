"""Metrics on lines of a child's output."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from headrace.serving.handlers.code_metrics import MAX_SERIES, CodeMetrics, read_line

LINE = "INFO [METRICS]Calls.Count:2|#ModelName:m,Level:Model|#type:COUNTER|#hostname:h,1700000000,r-0"


def rendered(metrics: CodeMetrics) -> str:
    class Families(Collector):
        def collect(self):
            return metrics.families()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families())
    return generate_latest(registry).decode()


def test_counters_add_up_gauges_keep_the_last_value_and_histograms_count() -> None:
    metrics = CodeMetrics()
    for line in (LINE, LINE, LINE.replace("COUNTER", "GAUGE").replace("Calls", "Time"), "other"):
        metrics.observe(line)
    for value in ("0.2", "3"):
        metrics.observe(f"[METRICS]Size.MB:{value}|#k:v|#type:HISTOGRAM|#hostname:h,1")

    text = rendered(metrics)
    assert 'Calls_total{Level="Model",ModelName="m"} 4.0' in text
    assert 'Time{Level="Model",ModelName="m"} 2.0' in text
    assert 'Size_bucket{k="v",le="0.25"} 1.0' in text
    assert 'Size_sum{k="v"} 3.2' in text


def test_lines_without_a_type_are_gauges_as_djl_writes_them() -> None:
    line = read_line("[METRICS]Load.Milliseconds:5.5|#Level:Model|#hostname:h,1")

    assert line is not None
    assert (line.type, line.value, line.labels) == ("GAUGE", 5.5, (("Level", "Model"),))


def test_wrong_lines_are_passed_over_and_series_are_bounded() -> None:
    metrics = CodeMetrics()
    for wrong in ("nan", "x", "-1", "inf"):
        metrics.observe(LINE.replace(":2|", f":{wrong}|"))
    for spoilt in ("ModelName:a,ModelName:b", "le:0.1", "quantile:1"):
        assert read_line(LINE.replace("ModelName:m,Level:Model", spoilt)) is None
    for index in range(MAX_SERIES + 5):
        metrics.observe(LINE.replace("ModelName:m", f"ModelName:m{index}"))
    metrics.observe(LINE.replace("Level:Model", "Other:Model"))

    assert rendered(metrics).count("Calls_total{") == MAX_SERIES


@given(st.text() | st.text(alphabet="[METRICS]a.b:1|#,type:COUNTERhostname", max_size=60).map("[METRICS]{}".format))
def test_any_line_is_read(line: str) -> None:
    CodeMetrics().observe(line)


def test_names_are_bounded() -> None:
    metrics = CodeMetrics()
    for index in range(MAX_SERIES + 5):
        metrics.observe(f"[METRICS]Name{index}.Count:1|#Level:Model|#hostname:h")
    assert len(list(metrics.families())) == MAX_SERIES
