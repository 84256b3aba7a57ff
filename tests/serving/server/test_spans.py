"""Spans of requests: their kind and their end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.core.generation import ChatPrompt, GenerationRequest, PoolingParams
from headrace.core.telemetry import RequestRecord
from headrace.serving.http.spans import DISCONNECTED
from headrace.serving.server.generate import describe_outcome, describe_request
from headrace.serving.wire.dialect import ParsedRequest


@dataclass
class NotedSpan:
    """A span that keeps what it is told."""

    is_recording: bool = True
    attributes: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    events: dict[str, float] = field(default_factory=dict)

    def describe(self, attributes: Mapping[str, Any]) -> None:
        self.attributes |= attributes

    def add_event(self, name: str, at_s: float) -> None:
        self.events[name] = at_s

    def fail(self, error: str) -> None:
        self.failures.append(error)


def parsed(*requests: GenerationRequest) -> ParsedRequest:
    return ParsedRequest(requests=requests, stream=False, reply=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "pooling", "operation"),
    [
        ("text", None, "text_completion"),
        (ChatPrompt(messages=()), None, "chat"),
        ("text", PoolingParams(), "embeddings"),
        ("text", PoolingParams(task="score"), "score"),
    ],
)
def test_the_operation_is_that_of_the_first_prompt(prompt, pooling, operation) -> None:
    span = NotedSpan()
    describe_request(span, parsed(GenerationRequest(request_id="r", prompt=prompt, pooling=pooling)), model="m")
    assert span.attributes["gen_ai.operation.name"] == operation
    assert ("gen_ai.request.max_tokens" in span.attributes) == (pooling is None)


def test_nothing_is_described_without_a_prompt_or_a_recording() -> None:
    silent, empty = NotedSpan(is_recording=False), NotedSpan()
    describe_request(silent, parsed(GenerationRequest(request_id="r", prompt="text")), model="m")
    describe_outcome(silent, RequestRecord(request_id="r", route="/", dialect="openai", started_s=0.0, status=500))
    describe_request(empty, parsed(), model="m")
    assert (silent.attributes, silent.failures, empty.attributes) == ({}, [], {})


@pytest.mark.parametrize(
    ("status", "finish", "error", "failures", "error_type"),
    [
        (200, "stop", None, [], None),
        (499, "disconnected", None, [DISCONNECTED], None),
        (200, "error", None, ["error"], None),
        (503, None, "overloaded", ["overloaded"], None),
        (500, None, None, ["error"], None),
        (400, None, "invalid_value", [], "invalid_value"),
    ],
)
def test_only_what_the_server_is_to_blame_for_is_a_failure(status, finish, error, failures, error_type) -> None:
    span = NotedSpan()
    times = {"started_s": 1.0, "parsed_s": 2.0, "queue_s": 1.0, "first_s": 5.0, "last_s": 7.0}
    record = RequestRecord(
        request_id="r", route="/", dialect="openai", status=status, finish=finish, error=error, **times
    )
    describe_outcome(span, record)
    assert (span.failures, span.attributes.get("error.type")) == (failures, error_type)
    assert span.attributes["gen_ai.latency.time_in_queue"] == 1.0
    assert span.events["prefill"] == 3.0
    assert span.attributes["gen_ai.latency.time_in_model_prefill"] == 2.0
    assert span.attributes["gen_ai.latency.time_in_model_decode"] == 2.0
