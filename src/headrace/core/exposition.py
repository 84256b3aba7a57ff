"""
Every Prometheus metric, declared once: under its own name and under the names that TGI and vLLM dashboards query.

Sources: TGI `router/src/`, `docs/source/reference/metrics.md`; vLLM `vllm/v1/metrics/loggers.py`.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.core.generation import EngineStats
from headrace.core.metrics import AdapterTotals, Distribution, Metrics

_VLLM_REASONS = {"eos_token": "stop", "stop_sequence": "stop", "disconnected": "abort"}

Row = tuple[tuple[str, ...], str, float]
"""All names of a metric, its help text and its value."""


def families(metrics: Metrics) -> Iterator[Metric]:
    """Yield all metrics under all their names."""
    info = metrics.info()
    label = info.name if info is not None else ""
    yield from _engine_metrics(metrics, label)
    yield from _request_metrics(metrics, label)
    if info is not None:
        about = GaugeMetricFamily(
            "headrace_model_info",
            "Always 1; the labels describe the model that is served.",
            labels=["model", "dtype", "kv_dtype", "device"],
        )
        about.add_metric([info.name, info.dtype, info.kv_dtype, info.device], 1)
        yield about
    yield from ProcessCollector(registry=None).collect()


def _engine_metrics(metrics: Metrics, model: str) -> Iterator[Metric]:
    stats = metrics.stats()
    for names, help_text, value in _gauges(stats, metrics.in_flight()):
        for name in names:
            yield _family(GaugeMetricFamily, name, help_text, model, value)
    for names, help_text, value in _counters(stats):
        for name in names:
            yield _family(CounterMetricFamily, name, help_text, model, value)


def _gauges(stats: EngineStats, requests_in_flight: int) -> tuple[Row, ...]:
    used = stats.num_blocks - stats.num_free_blocks
    share = used / stats.num_blocks if stats.num_blocks else 0.0
    return (
        (
            ("headrace_running_sequences", "tgi_batch_current_size", "vllm:num_requests_running"),
            "Sequences in the running batch.",
            stats.num_running,
        ),
        (
            ("headrace_waiting_sequences", "tgi_queue_size", "vllm:num_requests_waiting"),
            "Sequences that are waiting to be scheduled.",
            stats.num_waiting,
        ),
        (
            ("headrace_tokens_in_flight", "tgi_batch_current_max_tokens"),
            "Tokens of KV cache held by running sequences.",
            stats.tokens_in_flight,
        ),
        (("headrace_kv_blocks",), "Blocks of the KV cache.", stats.num_blocks),
        (
            ("headrace_kv_cache_tokens", "tgi_batch_max_total_tokens"),
            "Tokens that fit into the KV cache.",
            stats.num_blocks * stats.block_tokens,
        ),
        (("headrace_kv_blocks_free",), "Blocks that can be allocated now.", stats.num_free_blocks),
        (("headrace_kv_blocks_cached",), "Blocks that hold a cached prefix.", stats.num_cached_blocks),
        (
            ("headrace_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            "Share of the KV cache in use, 0 to 1.",
            share,
        ),
        (("headrace_requests_in_flight",), "Requests in flight.", requests_in_flight),
    )


def _counters(stats: EngineStats) -> tuple[Row, ...]:
    return (
        (
            ("headrace_prompt_tokens", "vllm:prompt_tokens", "vllm:prefix_cache_queries"),
            "Prompt tokens processed.",
            stats.prompt_tokens_total,
        ),
        (
            ("headrace_cached_prompt_tokens", "vllm:prefix_cache_hits"),
            "Prompt tokens whose KV came from the prefix cache.",
            stats.cached_tokens_total,
        ),
        (("headrace_output_tokens", "vllm:generation_tokens"), "Tokens generated.", stats.output_tokens_total),
        (
            ("headrace_draft_tokens", "vllm:spec_decode_num_draft_tokens"),
            "Draft tokens that were verified in a step.",
            stats.drafted_tokens_total,
        ),
        (
            ("headrace_accepted_draft_tokens", "vllm:spec_decode_num_accepted_tokens"),
            "Draft tokens that were accepted.",
            stats.accepted_tokens_total,
        ),
        (
            ("headrace_preemptions", "vllm:num_preemptions"),
            "Sequences that were preempted to free KV blocks.",
            stats.preemptions_total,
        ),
        (("headrace_steps",), "Steps of the engine.", stats.steps_total),
        (("headrace_step_seconds",), "Time spent in steps, seconds.", stats.step_seconds_total),
    )


def _request_metrics(metrics: Metrics, model: str) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "headrace_requests", "Requests answered.", labels=["model_name", "dialect", "status"]
    )
    for (dialect, status), count in metrics.by_status.items():
        requests.add_metric([model, dialect, status], count)
    yield requests
    finished = CounterMetricFamily(
        "vllm:request_success", "Answers by finish reason.", labels=["model_name", "finished_reason"]
    )
    for reason, count in metrics.by_finish.items():
        finished.add_metric([model, _VLLM_REASONS.get(reason, reason)], count)
    yield finished
    failed = CounterMetricFamily("tgi_request_failure", "Requests that failed.", labels=["err"])
    for kind, count in metrics.failures.items():
        failed.add_metric([kind], count)
    yield failed
    yield from _adapter_metrics(metrics, model)
    total, failures = sum(metrics.by_status.values()), sum(metrics.failures.values())
    yield CounterMetricFamily("tgi_request_count", "Requests answered.", value=total)
    yield CounterMetricFamily("tgi_request_success", "Requests that did not fail.", value=total - failures)
    for names, help_text, distribution in _distributions(metrics):
        for name in names:
            yield _histogram(name, help_text, model, distribution)


def _adapter_metrics(metrics: Metrics, model: str) -> Iterator[Metric]:
    """Yield the totals of the loaded adapters: clients choose the names, so unloaded ones are not kept."""
    labels = ["model_name", "adapter"]
    requests = CounterMetricFamily(
        "headrace_adapter_requests", "Requests answered with a loaded adapter.", labels=labels
    )
    prompts = CounterMetricFamily(
        "headrace_adapter_prompt_tokens", "Prompt tokens of requests answered with a loaded adapter.", labels=labels
    )
    outputs = CounterMetricFamily(
        "headrace_adapter_output_tokens", "Tokens generated with a loaded adapter.", labels=labels
    )
    for name in sorted(metrics.adapters()):
        totals = metrics.by_adapter.get(name, AdapterTotals())
        requests.add_metric([model, name], totals.requests)
        prompts.add_metric([model, name], totals.prompt_tokens)
        outputs.add_metric([model, name], totals.output_tokens)
    yield from (requests, prompts, outputs)


def _distributions(metrics: Metrics) -> tuple[tuple[tuple[str, ...], str, Distribution], ...]:
    return (
        (("headrace_ttft_seconds", "vllm:time_to_first_token_seconds"), "Time to the first token.", metrics.ttft_s),
        (
            ("headrace_itl_seconds", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
            "Time between two chunks of a stream.",
            metrics.itl_s,
        ),
        (
            (
                "headrace_mean_itl_seconds",
                "vllm:request_time_per_output_token_seconds",
                "tgi_request_mean_time_per_token_duration",
            ),
            "Mean time between two tokens of a request.",
            metrics.mean_itl_s,
        ),
        (
            ("headrace_request_seconds", "vllm:e2e_request_latency_seconds", "tgi_request_duration"),
            "End-to-end latency of a request.",
            metrics.total_s,
        ),
        (
            ("headrace_generation_seconds", "vllm:request_decode_time_seconds", "tgi_request_inference_duration"),
            "Time from the first token to the last.",
            metrics.generation_s,
        ),
        (
            ("headrace_queue_seconds", "vllm:request_queue_time_seconds", "tgi_request_queue_duration"),
            "Time from arrival to the first step.",
            metrics.queue_s,
        ),
        (("headrace_step_duration_seconds",), "Time of one step of the model.", metrics.step_s),
        (
            ("headrace_request_prompt_tokens", "vllm:request_prompt_tokens", "tgi_request_input_length"),
            "Tokens of a prompt.",
            metrics.prompt_tokens,
        ),
        (
            ("headrace_request_output_tokens", "vllm:request_generation_tokens", "tgi_request_generated_tokens"),
            "Tokens of an answer.",
            metrics.output_tokens,
        ),
        (
            ("headrace_request_max_new_tokens", "vllm:request_params_max_tokens", "tgi_request_max_new_tokens"),
            "Requested new tokens.",
            metrics.max_new_tokens,
        ),
    )


def render(metrics: Metrics) -> bytes:
    """Return the metrics in the Prometheus text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(metrics))
    return generate_latest(registry)


class _Families(Collector):
    """Collects the metrics whenever `prometheus_client` scrapes them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return families(self._metrics)


def _family(
    family: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, help_text: str, model: str, value: float
) -> Metric:
    built = family(name, help_text, labels=["model_name"])
    built.add_metric([model], value)
    return built


def _histogram(name: str, help_text: str, model: str, distribution: Distribution) -> Metric:
    built = HistogramMetricFamily(name, help_text, labels=["model_name"])
    built.add_metric([model], distribution.buckets(), sum_value=distribution.sum)
    return built
