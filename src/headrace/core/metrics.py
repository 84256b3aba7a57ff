"""
Every Prometheus metric, declared once: under our name and under the names that dashboards for TGI and vLLM look for.

Sources: TGI `router/src/`, `docs/source/reference/metrics.md`; vLLM `vllm/v1/metrics/loggers.py`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from headrace.core.generation import EngineStats, ModelInfo
from headrace.core.telemetry import RequestRecord

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class Distribution:
    """A histogram of one number, cheap enough to be fed once a token: no labels, no locks, one thread."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """How many values were seen."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound → how many values up to it, as Prometheus wants them."""
        total, made = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            made.append((bound, float(total)))
        return made

    @property
    def sum(self) -> float:
        """Sum of the values."""
        return self._sum


@dataclass(slots=True, eq=False)
class Metrics:
    """
    Everything that is counted, for one server.

    The engine's own numbers are read when somebody asks for the metrics; requests are counted as they end.
    """

    stats: Callable[[], EngineStats]
    info: Callable[[], ModelInfo | None]
    in_flight: Callable[[], int]
    """How many requests are being answered now."""
    by_status: dict[tuple[str, str], int] = field(default_factory=dict)
    """(dialect, HTTP status) → requests."""
    by_finish: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    """TGI's word for what went wrong → requests."""
    ttft_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    itl_s: Distribution = field(default_factory=lambda: Distribution(SHORT_SECONDS))
    mean_itl_s: Distribution = field(default_factory=lambda: Distribution(SHORT_SECONDS))
    total_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    generation_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    queue_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    """Fed by the engine's thread, as `step_s` is."""
    step_s: Distribution = field(default_factory=lambda: Distribution(SHORT_SECONDS))
    prompt_tokens: Distribution = field(default_factory=lambda: Distribution(TOKENS))
    output_tokens: Distribution = field(default_factory=lambda: Distribution(TOKENS))
    max_new_tokens: Distribution = field(default_factory=lambda: Distribution(TOKENS))

    def count(self, record: RequestRecord) -> None:
        """Take a request that has ended."""
        key = (record.dialect, str(record.status))
        self.by_status[key] = self.by_status.get(key, 0) + 1
        self.total_s.observe(record.total_s)
        if record.max_new_tokens is not None:
            self.max_new_tokens.observe(record.max_new_tokens)
        failure = _failure(record)
        if failure is not None:
            self.failures[failure] = self.failures.get(failure, 0) + 1
        if record.finish is not None:
            self.by_finish[record.finish] = self.by_finish.get(record.finish, 0) + 1
        if record.ttft_s is None or record.first_s is None:
            return
        self.ttft_s.observe(record.ttft_s)
        self.prompt_tokens.observe(record.prompt_tokens)
        self.output_tokens.observe(record.output_tokens)
        self.generation_s.observe(record.last_s - record.first_s)
        if record.output_tokens > 1:
            self.mean_itl_s.observe((record.last_s - record.first_s) / (record.output_tokens - 1))

    def collect(self) -> Iterator[Metric]:
        """All metrics, for `prometheus_client`."""
        info = self.info()
        label = info.name if info is not None else ""
        yield from self._engine_metrics(label)
        yield from self._request_metrics(label)
        if info is not None:
            about = GaugeMetricFamily(
                "headrace_model_info",
                "Always 1; the labels say what is served.",
                labels=["model", "dtype", "kv_dtype", "device"],
            )
            about.add_metric([info.name, info.dtype, info.kv_dtype, info.device], 1)
            yield about

    def _engine_metrics(self, model: str) -> Iterator[Metric]:
        stats = self.stats()
        used = stats.num_blocks - stats.num_free_blocks
        share = used / stats.num_blocks if stats.num_blocks else 0.0
        gauges = (
            (
                ("headrace_running_sequences", "tgi_batch_current_size", "vllm:num_requests_running"),
                "Sequences in the running batch.",
                stats.num_running,
            ),
            (
                ("headrace_waiting_sequences", "tgi_queue_size", "vllm:num_requests_waiting"),
                "Sequences that wait for their turn.",
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
            (("headrace_kv_blocks_free",), "Blocks that can be handed out now.", stats.num_free_blocks),
            (("headrace_kv_blocks_cached",), "Blocks that hold a prefix for later.", stats.num_cached_blocks),
            (
                ("headrace_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
                "Share of the KV cache in use, 0 to 1.",
                share,
            ),
            (("headrace_requests_in_flight",), "Requests that are being answered now.", self.in_flight()),
        )
        counters = (
            (
                ("headrace_prompt_tokens", "vllm:prompt_tokens", "vllm:prefix_cache_queries"),
                "Prompt tokens taken.",
                stats.prompt_tokens_total,
            ),
            (
                ("headrace_cached_prompt_tokens", "vllm:prefix_cache_hits"),
                "Prompt tokens whose KV came from the prefix cache.",
                stats.cached_tokens_total,
            ),
            (("headrace_output_tokens", "vllm:generation_tokens"), "Tokens generated.", stats.output_tokens_total),
            (
                ("headrace_preemptions", "vllm:num_preemptions"),
                "Sequences that were put back to make room.",
                stats.preemptions_total,
            ),
            (("headrace_steps",), "Steps of the engine.", stats.steps_total),
            (("headrace_step_seconds",), "Time spent in steps, seconds.", stats.step_seconds_total),
        )
        for names, help_text, value in gauges:
            for name in names:
                yield _one(GaugeMetricFamily, name, help_text, model, value)
        for names, help_text, value in counters:
            for name in names:
                yield _one(CounterMetricFamily, name, help_text, model, value)

    def _request_metrics(self, model: str) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "headrace_requests", "Requests answered.", labels=["model_name", "dialect", "status"]
        )
        for (dialect, status), count in self.by_status.items():
            requests.add_metric([model, dialect, status], count)
        yield requests
        finished = CounterMetricFamily(
            "vllm:request_success", "Answers by why they ended.", labels=["model_name", "finished_reason"]
        )
        for reason, count in self.by_finish.items():
            finished.add_metric([model, _VLLM_REASONS.get(reason, reason)], count)
        yield finished
        failed = CounterMetricFamily("tgi_request_failure", "Requests that failed.", labels=["err"])
        for kind, count in self.failures.items():
            failed.add_metric([kind], count)
        yield failed
        total, failures = sum(self.by_status.values()), sum(self.failures.values())
        yield CounterMetricFamily("tgi_request_count", "Requests answered.", value=total)
        yield CounterMetricFamily("tgi_request_success", "Requests that did not fail.", value=total - failures)
        for names, help_text, distribution in self._distributions():
            for name in names:
                yield _histogram(name, help_text, model, distribution)

    def _distributions(self) -> tuple[tuple[tuple[str, ...], str, Distribution], ...]:
        return (
            (("headrace_ttft_seconds", "vllm:time_to_first_token_seconds"), "Time to the first token.", self.ttft_s),
            (
                ("headrace_itl_seconds", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
                "Time between two chunks of a stream.",
                self.itl_s,
            ),
            (
                (
                    "headrace_mean_itl_seconds",
                    "vllm:request_time_per_output_token_seconds",
                    "tgi_request_mean_time_per_token_duration",
                ),
                "Mean time between two tokens of a request.",
                self.mean_itl_s,
            ),
            (
                ("headrace_request_seconds", "vllm:e2e_request_latency_seconds", "tgi_request_duration"),
                "Whole time of a request.",
                self.total_s,
            ),
            (
                ("headrace_generation_seconds", "vllm:request_decode_time_seconds", "tgi_request_inference_duration"),
                "Time from the first token to the last.",
                self.generation_s,
            ),
            (
                ("headrace_queue_seconds", "vllm:request_queue_time_seconds", "tgi_request_queue_duration"),
                "Time from arrival to the first step.",
                self.queue_s,
            ),
            (("headrace_step_duration_seconds",), "Time of one step of the model.", self.step_s),
            (
                ("headrace_request_prompt_tokens", "vllm:request_prompt_tokens", "tgi_request_input_length"),
                "Tokens of a prompt.",
                self.prompt_tokens,
            ),
            (
                ("headrace_request_output_tokens", "vllm:request_generation_tokens", "tgi_request_generated_tokens"),
                "Tokens of an answer.",
                self.output_tokens,
            ),
            (
                ("headrace_request_max_new_tokens", "vllm:request_params_max_tokens", "tgi_request_max_new_tokens"),
                "Tokens that were asked for.",
                self.max_new_tokens,
            ),
        )

    def render(self) -> bytes:
        """The metrics in Prometheus' text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)


_TGI_FAILURES = {"busy": "overloaded", "aborted": "incomplete", "engine_failed": "generation"}
_VLLM_REASONS = {"eos_token": "stop", "stop_sequence": "stop", "disconnected": "abort"}


def _failure(record: RequestRecord) -> str | None:
    """TGI's word for what went wrong, if something did."""
    if record.finish == "disconnected":
        return "dropped"
    if record.error is None:
        return None
    return _TGI_FAILURES.get(record.error, "generation" if record.status >= 500 else "validation")


def _one(
    family: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, help_text: str, model: str, value: float
) -> Metric:
    made = family(name, help_text, labels=["model_name"])
    made.add_metric([model], value)
    return made


def _histogram(name: str, help_text: str, model: str, distribution: Distribution) -> Metric:
    made = HistogramMetricFamily(name, help_text, labels=["model_name"])
    made.add_metric([model], distribution.buckets(), sum_value=distribution.sum)
    return made
