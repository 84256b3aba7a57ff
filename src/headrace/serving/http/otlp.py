"""
The receiver of spans, by settings and standard variables (`OTEL_*`); `http.otlp_spans` records and exports them.

OpenTelemetry's SDK is loaded only if there is a receiver.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from urllib.parse import urlsplit

from headrace.core.errors import SettingsError
from headrace.core.installing import pip_install
from headrace.core.telemetry import get_logger
from headrace.core.tracing import NO_TRACER, Tracer

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
SERVICE_NAME = "OTEL_SERVICE_NAME"
SECRETS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
"""Variables that may have keys of the receiver."""
_PROTOCOLS = {"http/protobuf": "http", "grpc": "grpc"}
"""The value of `OTEL_EXPORTER_OTLP_PROTOCOL` → the package's name for it."""
_HTTP_PATH = "/v1/traces"


@dataclass(frozen=True, slots=True)
class OtlpTarget:
    """The receiver of spans and its protocol."""

    url: str
    protocol: str
    """`http/protobuf` or `grpc`."""

    @property
    def public_url(self) -> str:
        """The URL without credentials and query, for messages."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def otlp_target(endpoint: str | None, env: Mapping[str, str]) -> OtlpTarget | None:
    """Return the receiver that the setting or the standard variables name; None: no tracing. Raises `SettingsError`."""
    asked = endpoint or _given(env, TRACES_ENDPOINT)
    base = _given(env, ENDPOINT)
    if not (asked or base) or env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporter = _given(env, "OTEL_TRACES_EXPORTER") or "otlp"
    if exporter == "none":
        return None
    if exporter != "otlp":
        raise SettingsError(
            f"OTEL_TRACES_EXPORTER is {exporter!r}; expected otlp or none.", name="otlp_traces_endpoint"
        )
    protocol = _protocol(asked or base, env)
    url = asked or base
    is_bare = urlsplit(url).path in {"", "/"}
    if protocol == "http/protobuf" and (not asked or (is_bare and endpoint)):
        url = url.rstrip("/") + _HTTP_PATH
    return OtlpTarget(url=url, protocol=protocol)


def traced_environment(endpoint: str | None, env: Mapping[str, str]) -> dict[str, str]:
    """
    Return the variables by which another process exports its spans to the same receiver; empty without tracing.

    The service's name is its own, and headers and keys are secrets, which must not be stored with a worker.
    """
    target = otlp_target(endpoint, env)
    if target is None:
        return {}
    own = (SERVICE_NAME, TRACES_ENDPOINT, TRACES_PROTOCOL, *SECRETS)
    shared = {name: value for name, value in env.items() if name.startswith("OTEL_") and name not in own}
    return {**shared, TRACES_ENDPOINT: target.url, TRACES_PROTOCOL: target.protocol}


def _given(env: Mapping[str, str], name: str) -> str:
    return env.get(name, "").strip()


def _protocol(url: str, env: Mapping[str, str]) -> str:
    named = _given(env, TRACES_PROTOCOL) or _given(env, "OTEL_EXPORTER_OTLP_PROTOCOL")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https", "grpc"} or not parts.hostname:
        raise SettingsError(
            f"otlp_traces_endpoint is {url!r}; expected a URL such as http://localhost:4318 or grpc://localhost:4317.",
            name="otlp_traces_endpoint",
        )
    protocol = named or ("grpc" if parts.scheme == "grpc" else "http/protobuf")
    if protocol not in _PROTOCOLS:
        raise SettingsError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; expected {' or '.join(_PROTOCOLS)}.",
            name="otlp_traces_endpoint",
        )
    return protocol


@contextmanager
def tracing(endpoint: str | None, env: Mapping[str, str], *, service: str) -> Iterator[Tracer]:
    """
    Yield the tracer that setting and environment ask for; export the remaining spans when the block ends.

    `service` is the name of this process in traces, unless `OTEL_SERVICE_NAME` gives one. Raises `SettingsError`.
    """
    target = otlp_target(endpoint, env)
    if target is None:
        yield NO_TRACER
        return
    try:
        exporters = import_module(f"opentelemetry.exporter.otlp.proto.{_PROTOCOLS[target.protocol]}.trace_exporter")
        from headrace.serving.http.otlp_spans import OtelTracer
    except ImportError as error:
        raise SettingsError(
            f"Traces are to be exported to {target.public_url} by {target.protocol}, and {error.name} is not "
            f"installed. Install it (`{pip_install('headrace[otel]')}`), or set OTEL_SDK_DISABLED=true.",
            name="otlp_traces_endpoint",
        ) from error
    exporter = exporters.OTLPSpanExporter(endpoint=target.url.replace("grpc://", "http://", 1))  # gRPC without TLS
    tracer = OtelTracer(exporter, service=_given(env, SERVICE_NAME) or service, url=target.public_url)
    get_logger().info("traces.exported_to", url=target.public_url, protocol=target.protocol)
    try:
        yield tracer
    finally:
        tracer.close()
