"""The ids of a request: accepted, replaced and forwarded ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.tracing import TraceContext, read_trace

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
AMZN = "Root=1-67891233-abcdef012345678912345678;Parent=53995c3f42cd8ad8;Sampled=1"


def read(**headers: str) -> TraceContext:
    return read_trace((name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items())


def test_all_ids_are_read_logged_and_passed_on():
    trace = read(
        x_request_id="mine-1",
        x_amzn_sagemaker_inference_id="my id",
        x_amzn_trace_id=AMZN,
        traceparent=TRACEPARENT,
        tracestate="vendor=a,other=b",
    )
    assert trace.headers() == (
        ("X-Request-Id", "mine-1"),
        ("X-Amzn-SageMaker-Inference-Id", "my id"),
        ("X-Amzn-Trace-Id", AMZN),
        ("traceparent", TRACEPARENT),
        ("tracestate", "vendor=a,other=b"),
    )
    assert trace.log_fields() == {
        "request_id": "mine-1",
        "inference_id": "my id",
        "trace_id": TRACE_ID,
        "parent_id": PARENT_ID,
        "amzn_trace_id": AMZN,
    }


def test_only_a_request_id_is_generated_without_headers():
    trace = read()
    assert len(trace.request_id) == 32
    assert trace.headers() == (("X-Request-Id", trace.request_id),)
    assert trace.log_fields() == {"request_id": trace.request_id}
    assert read().request_id != trace.request_id


def test_the_short_name_of_the_inference_id_is_known_too():
    assert read(inference_id="i").inference_id == "i"
    assert read(inference_id="i", x_amzn_sagemaker_inference_id="j").inference_id == "j"


@pytest.mark.parametrize("bad", ["", "a b", 'a"b', "a\nb", "ü", "x" * 129, "<b>"])
def test_a_bad_request_id_is_replaced(bad):
    assert len(read(x_request_id=bad).request_id) == 32


def test_repeated_request_ids_are_joined():
    assert read_trace([(b"x-request-id", b"a"), (b"x-request-id", b"b")]).request_id == "a,b"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "00",
        TRACEPARENT.upper(),
        f"ff-{TRACE_ID}-{PARENT_ID}-01",
        f"00-{'0' * 32}-{PARENT_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"{TRACEPARENT}-more",
        f"01-{TRACE_ID}-{PARENT_ID}-01more",
        f"01-{TRACE_ID}-{PARENT_ID}-01-{'x' * 201}",
        f"{TRACEPARENT},{TRACEPARENT}",
    ],
)
def test_a_bad_trace_context_is_dropped_whole(bad):
    trace = read(traceparent=bad, tracestate="vendor=a")
    assert (trace.traceparent, trace.tracestate) == ("", "")


@pytest.mark.parametrize("later", [f"01-{TRACE_ID}-{PARENT_ID}-01", f"cc-{TRACE_ID}-{PARENT_ID}-01-what.comes"])
def test_later_versions_may_have_more_fields(later):
    trace = read(traceparent=later)
    assert (trace.traceparent, trace.log_fields()["trace_id"]) == (later, TRACE_ID)


def test_a_state_that_is_too_long_is_dropped_alone():
    trace = read(traceparent=TRACEPARENT, tracestate="x" * 513)
    assert (trace.traceparent, trace.tracestate) == (TRACEPARENT, "")


NAMES = [
    "x-request-id",
    "x-amzn-sagemaker-inference-id",
    "inference-id",
    "x-amzn-trace-id",
    "traceparent",
    "tracestate",
]


@given(st.lists(st.tuples(st.sampled_from(NAMES).map(str.encode), st.binary(max_size=600)), max_size=8))
def test_forwarded_ids_are_short_and_safe_and_are_read_back_unchanged(headers):
    trace = read_trace(headers)
    passed_on = trace.headers()
    assert passed_on[0][0] == "X-Request-Id"
    for _, value in passed_on:
        assert value.isascii()
        assert value.isprintable()
        assert len(value) <= 512
    assert read_trace((name.lower().encode(), value.encode()) for name, value in passed_on).headers() == tuple(
        (name, value.strip()) for name, value in passed_on if value.strip()
    )
