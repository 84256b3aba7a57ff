"""
Every Prometheus metric, declared once: under its own name and under the names that TGI and vLLM dashboards query.

Sources: TGI `router/src/`, `docs/source/reference/metrics.md`; vLLM `vllm/v1/metrics/loggers.py`.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.core.metrics import AdapterTotals, BatchMetrics, Distribution, Metrics

_VLLM_REASONS = {"eos_token": "stop", "stop_sequence": "stop", "disconnected": "abort"}

_Table = tuple[tuple[str, str, tuple[str, ...]], ...]
"""An attribute with the value, the help text and all names of each metric."""


def _read_table(text: str) -> _Table:
    lines = text.strip().splitlines()
    heads = [line.split(": ", 1) for line in lines[::2]]
    return tuple(
        (key, help_text, tuple(names.split())) for (key, help_text), names in zip(heads, lines[1::2], strict=True)
    )


_GAUGES: Final = _read_table("""
num_running: Sequences in the running batch.
    headrace_running_sequences tgi_batch_current_size vllm:num_requests_running
num_waiting: Sequences that are waiting to be scheduled.
    headrace_waiting_sequences tgi_queue_size vllm:num_requests_waiting
tokens_in_flight: Tokens of KV cache held by running sequences.
    headrace_tokens_in_flight tgi_batch_current_max_tokens
num_blocks: Blocks of the KV cache.
    headrace_kv_blocks
cache_tokens: Tokens that fit into the KV cache.
    headrace_kv_cache_tokens tgi_batch_max_total_tokens
num_free_blocks: Blocks that can be allocated now.
    headrace_kv_blocks_free
num_cached_blocks: Blocks that hold a cached prefix.
    headrace_kv_blocks_cached
cache_usage: Share of the KV cache in use, 0 to 1.
    headrace_kv_cache_usage_ratio vllm:kv_cache_usage_perc vllm:gpu_cache_usage_perc
num_state_slots: Slots for the states of models with state layers.
    headrace_state_slots
num_live_states: State slots of running sequences.
    headrace_state_slots_live
num_checkpoints: State slots that hold the checkpoint of a prefix.
    headrace_state_checkpoints
stored_bytes: Size of the folder of the prefix cache on disk, bytes.
    headrace_prefix_store_bytes
in_flight: Requests in flight.
    headrace_requests_in_flight
""")
_COUNTERS: Final = _read_table("""
prompt_tokens_total: Prompt tokens processed.
    headrace_prompt_tokens vllm:prompt_tokens vllm:prefix_cache_queries
cached_tokens_total: Prompt tokens whose KV came from the prefix cache.
    headrace_cached_prompt_tokens vllm:prefix_cache_hits
output_tokens_total: Tokens generated.
    headrace_output_tokens vllm:generation_tokens
drafted_tokens_total: Draft tokens that were verified in a step.
    headrace_draft_tokens vllm:spec_decode_num_draft_tokens
accepted_tokens_total: Draft tokens that were accepted.
    headrace_accepted_draft_tokens vllm:spec_decode_num_accepted_tokens
preemptions_total: Sequences that were preempted to free KV blocks.
    headrace_preemptions vllm:num_preemptions
checkpoint_hits_total: Sequences that went on from a checkpoint of a state.
    headrace_checkpoint_hits
recomputed_tokens_total: Tokens with cached KV that were computed again because no checkpoint was after them.
    headrace_recomputed_tokens
stored_tokens_total: Prompt tokens whose KV was read from the prefix cache on disk.
    headrace_prefix_store_read_tokens vllm:external_prefix_cache_hits
store_read_bytes_total: Bytes of KV and states that were read from the prefix cache on disk.
    headrace_prefix_store_read_bytes
store_written_bytes_total: Bytes of KV and states that were written to the prefix cache on disk.
    headrace_prefix_store_written_bytes
store_dropped_rows_total: Blocks and states that were not written: evicted first, too many at a time, or a full disk.
    headrace_prefix_store_dropped_rows
store_damaged_files_total: Files of the prefix cache on disk that were damaged; their prefixes were computed again.
    headrace_prefix_store_damaged_files
steps_total: Steps of the engine.
    headrace_steps
step_seconds_total: Time spent in steps, seconds.
    headrace_step_seconds
step_thread_seconds_total: Thread-seconds of steps; divided by headrace_step_seconds_total, the mean number of threads.
    headrace_step_thread_seconds
""")
_DISTRIBUTIONS: Final = _read_table("""
ttft_s: Time to the first token.
    headrace_ttft_seconds vllm:time_to_first_token_seconds
itl_s: Time between two chunks of a stream.
    headrace_itl_seconds vllm:inter_token_latency_seconds vllm:time_per_output_token_seconds
mean_itl_s: Mean time between two tokens of a request.
    headrace_mean_itl_seconds vllm:request_time_per_output_token_seconds tgi_request_mean_time_per_token_duration
total_s: End-to-end latency of a request.
    headrace_request_seconds vllm:e2e_request_latency_seconds tgi_request_duration
generation_s: Time from the first token to the last.
    headrace_generation_seconds vllm:request_decode_time_seconds tgi_request_inference_duration
queue_s: Time from arrival to the first step.
    headrace_queue_seconds vllm:request_queue_time_seconds tgi_request_queue_duration
step_s: Time of one step of the model.
    headrace_step_duration_seconds
prompt_tokens: Tokens of a prompt.
    headrace_request_prompt_tokens vllm:request_prompt_tokens tgi_request_input_length
output_tokens: Tokens of an answer.
    headrace_request_output_tokens vllm:request_generation_tokens tgi_request_generated_tokens
max_new_tokens: Requested new tokens.
    headrace_request_max_new_tokens vllm:request_params_max_tokens tgi_request_max_new_tokens
""")


def families(metrics: Metrics) -> Iterator[Metric]:
    """Yield all metrics under all their names."""
    info = metrics.info()
    label = info.name if info is not None else ""
    yield from _engine_metrics(metrics, label)
    yield from batch_families(metrics.batches, "headrace")
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


def batch_families(batches: BatchMetrics, prefix: str) -> Iterator[Metric]:
    """Yield what a server or a gateway shows of its batches."""
    yield GaugeMetricFamily(f"{prefix}_batches_running", "Batches that run now.", batches.num_active)
    lines = CounterMetricFamily(f"{prefix}_batch_requests", "Requests of batches by their outcome.", labels=["outcome"])
    for outcome, count in batches.lines.items():
        lines.add_metric([outcome], count)
    yield lines


def _engine_metrics(metrics: Metrics, model: str) -> Iterator[Metric]:
    stats = metrics.stats()
    used = stats.num_blocks - stats.num_free_blocks
    derived = {
        "cache_tokens": stats.num_blocks * stats.block_tokens,
        "cache_usage": used / stats.num_blocks if stats.num_blocks else 0.0,
        "in_flight": metrics.in_flight(),
    }
    for family, table in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for key, help_text, names in table:
            value = derived[key] if key in derived else getattr(stats, key)
            for name in names:
                built = family(name, help_text, labels=["model_name"])
                built.add_metric([model], value)
                yield built


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
    for key, help_text, names in _DISTRIBUTIONS:
        distribution: Distribution = getattr(metrics, key)
        for name in names:
            histogram = HistogramMetricFamily(name, help_text, labels=["model_name"])
            histogram.add_metric([model], distribution.buckets(), sum_value=distribution.sum)
            yield histogram


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


def render(metrics: Metrics) -> bytes:
    """Return the metrics in the Prometheus text format."""
    return generate_latest(_Families(metrics))


class _Families(Collector):
    """Collects the metrics whenever `prometheus_client` scrapes them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return families(self._metrics)
