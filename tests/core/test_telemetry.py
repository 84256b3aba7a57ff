"""The log and the metrics, without a server."""

import contextlib
import io
import json
import logging
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headrace.core.engine_stats import EngineStats
from headrace.core.errors import Unavailable
from headrace.core.exposition import render
from headrace.core.generation import ModelInfo
from headrace.core.metrics import SECONDS, Distribution, Metrics
from headrace.core.telemetry import RequestRecord, get_logger, log_request, mask_secrets, setup_logging

INFO = ModelInfo(
    name="m",
    revision=None,
    family="llama",
    dtype="w8a8",
    kv_dtype="int8",
    device="cpu (avx512)",
    max_model_len=10,
    max_prompt_tokens=9,
    max_num_seqs=2,
    vocab_size=5,
    num_parameters=1,
    has_chat_template=False,
    created_s=0,
)


def record(**facts):
    return RequestRecord(
        **{"request_id": "r", "route": "/", "dialect": "tgi-3", "started_s": 10.0, "ended_s": 11.0, **facts}
    )


def metrics(stats=None):
    return Metrics(stats=lambda: stats or EngineStats(), info=lambda: INFO, in_flight=lambda: 3)


def lines(log):
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_the_request_line_has_its_facts_in_milliseconds():
    log = io.StringIO()
    setup_logging(format="json", stream=log)
    log_request(get_logger(), record(status=200, first_s=10.25, prompt_tokens=4, output_tokens=2, finish="length"))
    (line,) = lines(log)
    assert (line["ttft_ms"], line["total_ms"], line["level"]) == (250.0, 1000.0, "info")
    assert "error" not in line
    assert "prompts" not in line


@pytest.mark.parametrize(("status", "level"), [(422, "warning"), (429, "warning"), (500, "error")])
def test_a_failed_request_is_a_warning_and_an_internal_failure_an_error(status, level):
    log = io.StringIO()
    setup_logging(format="json", stream=log)
    log_request(get_logger(), record(status=status, error="x", message="Why."))
    assert lines(log)[0]["level"] == level


def test_lines_below_the_level_are_not_logged():
    log = io.StringIO()
    setup_logging(format="json", level="error", stream=log)
    log_request(get_logger(), record(status=200))
    assert log.getvalue() == ""


def test_libraries_log_in_the_same_form_but_only_warnings():
    log = io.StringIO()
    setup_logging(format="json", stream=log)
    logging.getLogger("uvicorn.error").info("chatter")
    logging.getLogger("uvicorn.error").warning("odd: %s", 3)
    (line,) = lines(log)
    assert (line["event"], line["level"]) == ("odd: 3", "warning")


def test_auto_is_json_away_from_a_terminal():
    log = io.StringIO()
    setup_logging(stream=log)
    get_logger().info("thing.happened", num_things=2)
    assert lines(log)[0]["num_things"] == 2


def test_a_console_line_is_for_people():
    log = io.StringIO()
    setup_logging(format="console", stream=log)
    get_logger().info("thing.happened", num_things=2)
    assert re.search(r"thing\.happened\s+num_things=2", log.getvalue())


def test_a_console_shows_what_another_program_printed_as_it_was_printed():
    log = io.StringIO()
    setup_logging(format="console", stream=log)
    get_logger().info("handler.output", model="iris", pid=7, stream="stdout", line='  File "a.py", line 1\x1b[2J')
    assert re.fullmatch(r'\d\d:\d\d:\d\d iris 7 \|   File "a\.py", line 1%1B\[2J\n', log.getvalue())


def test_tracebacks_do_not_show_local_values():
    for form in ("console", "json"):
        log = io.StringIO()
        setup_logging(format=form, stream=log)
        prompt = "private" + form
        try:
            json.loads(prompt[:0])
        except ValueError:
            get_logger().exception("request.crashed")
        assert "JSONDecodeError" in log.getvalue()
        assert prompt not in log.getvalue()


def test_secrets_are_masked():
    event = mask_secrets(None, "info", {"api_key": "k", "Authorization": "Bearer k", "prompt_tokens": 5})
    assert event == {"api_key": "***", "Authorization": "***", "prompt_tokens": 5}


@given(st.lists(st.floats(0, 1000), max_size=200))
def test_a_distribution_counts_as_prometheus_does(values):
    distribution = Distribution(SECONDS)
    for value in values:
        distribution.observe(value)
    buckets = dict(distribution.buckets())
    for bound in SECONDS:
        assert buckets[str(bound)] == sum(value <= bound for value in values)
    assert buckets["+Inf"] == distribution.count == len(values)
    assert distribution.sum == pytest.approx(sum(values))


def families(made):
    return {family.name: family for family in text_string_to_metric_families(render(made).decode())}


def test_the_metrics_page_is_valid_and_has_each_name_once():
    text = render(metrics()).decode()
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"(headrace_|process_|tgi_|vllm:)\w+", name) for name in names)
    assert set(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE)) == set(names)
    assert families(metrics())


@pytest.mark.parametrize(
    "name",
    [
        "tgi_queue_size",
        "tgi_batch_current_size",
        "tgi_request_count_total",
        "tgi_request_duration_bucket",
        "tgi_request_mean_time_per_token_duration_bucket",
        "tgi_request_input_length_bucket",
        "tgi_request_generated_tokens_bucket",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:num_preemptions_total",
        "headrace_running_sequences",
        "headrace_kv_blocks",
        "headrace_kv_blocks_free",
        "headrace_steps_total",
        "headrace_cached_prompt_tokens_total",
        "headrace_requests_in_flight",
    ],
)
def test_the_names_that_dashboards_use_exist(name):
    assert re.search(rf"^{re.escape(name)}[ {{]", render(metrics()).decode(), re.MULTILINE)


def test_the_engines_numbers_are_read_when_asked():
    stats = EngineStats(
        num_running=2, num_waiting=1, num_blocks=10, num_free_blocks=4, output_tokens_total=99, accepted_tokens_total=7
    )
    found = families(metrics(stats))
    assert found["vllm:num_requests_running"].samples[0].value == 2
    assert found["tgi_queue_size"].samples[0].value == 1
    assert found["headrace_kv_cache_usage_ratio"].samples[0].value == pytest.approx(0.6)
    assert found["headrace_output_tokens"].samples[0].value == 99
    assert found["vllm:spec_decode_num_accepted_tokens"].samples[0].value == 7
    assert found["headrace_requests_in_flight"].samples[0].value == 3
    assert found["headrace_model_info"].samples[0].labels["dtype"] == "w8a8"


def test_adapters_that_were_unloaded_leave_no_totals():
    loaded = set()
    made = replace(metrics(), adapters=lambda: loaded)
    for number in range(100):
        loaded.add(str(number))
        made.count_adapter(str(number), requests=1, prompt_tokens=5, output_tokens=2)
        loaded.remove(str(number))
        made.count_adapter(str(number), requests=1, prompt_tokens=5, output_tokens=2)
    assert made.by_adapter == {}
    loaded.update({"a", "b"})
    made.count_adapter("a", requests=1, prompt_tokens=5, output_tokens=2)
    samples = families(made)["headrace_adapter_prompt_tokens"].samples
    assert {sample.labels["adapter"]: sample.value for sample in samples} == {"a": 5, "b": 0}


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (422, "invalid_request", "validation"),
        (429, "busy", "overloaded"),
        (424, "engine_failed", "generation"),
        (500, "internal", "generation"),
        (200, "aborted", "incomplete"),
    ],
)
def test_failures_are_counted_by_tgis_names(status, error, kind):
    made = metrics()
    made.count(record(status=status, error=error))
    assert made.failures == {kind: 1}


def test_a_refused_request_may_have_asked_for_more_tokens_than_a_float_can_hold():
    made = metrics()
    made.count(record(status=422, error="context_too_long", max_new_tokens=10**400))
    assert made.failures == {"validation": 1}
    assert made.max_new_tokens.count == 0


def test_a_client_that_left_is_a_dropped_request():
    made = metrics()
    made.count(record(status=499, finish="disconnected", first_s=10.1, last_s=10.2))
    assert made.failures == {"dropped": 1}


class RecordedWrites(io.RawIOBase):
    """A log that notes each write to it, as another process that appends to the same file would meet them."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self.writes.append(bytes(data))
        return len(data)


def test_each_line_is_one_write_however_long_it_is():
    raw = RecordedWrites()
    setup_logging(format="json", stream=io.TextIOWrapper(io.BufferedWriter(raw)))
    for length in (10, 100_000):
        get_logger().info("thing.happened", text="x" * length)
        logging.getLogger("library").warning("%s", "y" * length)
    assert len(raw.writes) == 4
    assert all(line.endswith(b"}\n") and line.count(b"\n") == 1 for line in raw.writes)


@pytest.mark.parametrize("form", ["json", "console"])
def test_what_is_unavailable_has_a_line_and_a_fault_of_ours_its_traceback(form):
    def fail(error):
        raise error

    for error, is_short in ((Unavailable("The database restarts."), True), (KeyError("x"), False)):
        log = io.StringIO()
        setup_logging(format=form, stream=log)
        try:
            fail(error)
        except (Unavailable, KeyError) as raised:
            get_logger().exception("pass.failed")
            get_logger().error("pass.failed", exc_info=raised)
        assert ("Traceback" not in log.getvalue()) == is_short
        assert log.getvalue().count("The database restarts.") == (2 if is_short else 0)
    setup_logging()


def test_a_line_that_cannot_be_written_fails_nothing():
    """Such as on a full disk."""
    with open("/dev/full", "w", buffering=1) as full:  # noqa: PTH123 -- buffered by lines as stderr
        setup_logging(format="json", stream=full)
        for _ in range(1000):
            get_logger().warning("request.refused", path="/" * 100)
        logging.getLogger("library").warning("text")
        with contextlib.suppress(OSError):
            full.close()
    setup_logging()
