"""The receiver of spans: the setting, OpenTelemetry's standard variables, and what they refuse."""

import sys

import pytest

from headrace.core.errors import SettingsError
from headrace.core.tracing import NO_TRACER, TraceContext
from headrace.serving.http.otlp import OtlpTarget, otlp_target, traced_environment, tracing

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
HTTP, GRPC = "http/protobuf", "grpc"


@pytest.mark.parametrize(
    ("setting", "env", "url", "protocol"),
    [
        ("http://c:4318", {}, "http://c:4318/v1/traces", HTTP),
        ("http://c:4318/v1/traces", {}, "http://c:4318/v1/traces", HTTP),
        ("https://c/otlp", {}, "https://c/otlp", HTTP),
        ("grpc://c:4317", {}, "grpc://c:4317", GRPC),
        ("http://c:4317", {PROTOCOL: "grpc"}, "http://c:4317", GRPC),
        (None, {BASE: "http://c:4318"}, "http://c:4318/v1/traces", HTTP),
        (None, {BASE: "http://c:4318/base/"}, "http://c:4318/base/v1/traces", HTTP),
        (None, {BASE: "http://c:4317", PROTOCOL: "grpc"}, "http://c:4317", GRPC),
        (None, {TRACES: "http://c/t", BASE: "http://other"}, "http://c/t", HTTP),
        (None, {TRACES: "http://c:4318"}, "http://c:4318", HTTP),
        ("http://mine", {TRACES: "http://c/t"}, "http://mine/v1/traces", HTTP),
        (
            None,
            {BASE: "http://c", PROTOCOL: "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": HTTP},
            "http://c/v1/traces",
            HTTP,
        ),
    ],
)
def test_a_receiver_is_named_by_the_setting_or_by_the_standard_variables(
    setting: str | None, env: dict[str, str], url: str, protocol: str
) -> None:
    assert otlp_target(setting, env) == OtlpTarget(url=url, protocol=protocol)


@pytest.mark.parametrize(
    "env",
    [
        {},
        {BASE: " "},
        {BASE: "http://c", "OTEL_SDK_DISABLED": "True"},
        {BASE: "http://c", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_a_receiver_nothing_is_recorded_and_contexts_are_passed_on(env: dict[str, str]) -> None:
    trace = TraceContext(traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    with tracing(None, env, service="s") as tracer:
        assert tracer is NO_TRACER
        span = tracer.start("POST", trace)
    assert span.trace is trace
    assert not span.is_recording
    assert traced_environment(None, env) == {}


@pytest.mark.parametrize(
    ("setting", "env", "named"),
    [
        ("localhost:4318", {}, "localhost:4318"),
        ("ftp://c", {}, "ftp://c"),
        ("http://c", {PROTOCOL: "http/json"}, "http/json"),
        (None, {BASE: "http://c", "OTEL_TRACES_EXPORTER": "zipkin"}, "zipkin"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_value(setting: str | None, env: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        otlp_target(setting, env)


def test_without_the_extra_the_refusal_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with (
        pytest.raises(SettingsError, match=r"pip install .*otel") as raised,
        tracing("http://u:pw@c", {}, service="s"),
    ):
        pass
    assert "http://c/v1/traces" in raised.value.message
    assert "pw" not in raised.value.message


def test_a_worker_exports_to_the_same_receiver_under_its_own_name_and_without_stored_keys() -> None:
    env = {
        BASE: "http://c:4318",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_SERVICE_NAME": "platform",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=k",
        "PATH": "/bin",
    }
    environment = traced_environment(None, env)
    assert otlp_target(None, environment) == otlp_target(None, env)
    assert environment["OTEL_TRACES_SAMPLER"] == "parentbased_traceidratio"
    assert not {"OTEL_SERVICE_NAME", "OTEL_EXPORTER_OTLP_HEADERS", "PATH"} & environment.keys()
    assert otlp_target(None, traced_environment("grpc://c:4317", {})) == otlp_target("grpc://c:4317", {})
