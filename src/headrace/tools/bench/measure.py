"""
Statistics of client-side records: latencies, throughput, failures, goodput, cost. Pure.

**TTFT**, time to first token: from the moment the request was due (its arrival time in an open loop, so that a lagging
client or queue cannot hide it) to the first piece of text. **ITL**, inter-token latency: the gap between two pieces of
text of an answer. **TPOT**, time per output token after the first: one figure for each answer. **E2E**: from due to
the end of the answer.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import ceil, floor
from statistics import fmean

from headrace.core.errors import SettingsError


class Failure(StrEnum):
    """The reasons why a request has no complete answer."""

    CONNECT = "connect"
    """No connection: refused, unreachable, name not found."""
    TIMEOUT = "timeout"
    BUSY = "busy"
    """429 or 503: the server is full or not ready."""
    CLIENT_ERROR = "http_4xx"
    SERVER_ERROR = "http_5xx"
    STREAM_ERROR = "error_in_stream"
    """An error event after the answer had begun."""
    TRUNCATED = "truncated"
    """The connection closed before the end of the answer."""
    UNREADABLE = "unreadable"
    """The answer does not have the requested format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A request as its client saw it. All times are seconds from the start of the run."""

    index: int
    due_s: float
    sent_s: float
    end_s: float
    text_at_s: tuple[float, ...] = ()
    """Arrival time of each piece of text."""
    prompt_tokens: int | None = None
    """The server's count; None if it does not report one."""
    output_tokens: int | None = None
    cached_tokens: int | None = None
    text_chars: int = 0
    failure: Failure | None = None
    message: str = ""

    @property
    def num_output_tokens(self) -> int:
        """The server's token count, else the number of pieces of text."""
        return len(self.text_at_s) if self.output_tokens is None else self.output_tokens

    @property
    def ttft_s(self) -> float:
        """Time to first token; the total time if the answer is empty."""
        return (self.text_at_s[0] if self.text_at_s else self.end_s) - self.due_s

    @property
    def e2e_s(self) -> float:
        """Time from due to the end of the answer."""
        return self.end_s - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None for fewer than two tokens."""
        if self.num_output_tokens < 2 or not self.text_at_s:
            return None
        return (self.text_at_s[-1] - self.text_at_s[0]) / (self.num_output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Summary statistics of a set of values, in their unit."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """The latency limits that a good answer meets; None means no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @property
    def any(self) -> bool:
        """True if any limit is set."""
        return self != Objectives()

    def met_by(self, record: RequestRecord) -> bool:
        """Return whether the request succeeded within every limit."""
        pairs = ((record.ttft_s, self.ttft_s), (record.tpot_s, self.tpot_s), (record.e2e_s, self.e2e_s))
        return record.failure is None and all(seen is None or limit is None or seen <= limit for seen, limit in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The answers that met the objectives: their number, share and rate."""

    fraction: float
    requests_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of tokens at an hourly price and the load of this run."""

    per_1k_output_tokens: float
    per_1k_total_tokens: float | None
    """Cost of prompt and output tokens together; None if the server does not count the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All figures of a run. Latencies and throughput count complete answers only."""

    num_requests: int
    num_succeeded: int
    failures: dict[str, int]
    duration_s: float
    requests_per_s: float
    output_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    tokens_counted_by: str
    """`server usage`, `streamed pieces`, or `mixed`."""
    output_tokens_per_s: float
    total_tokens_per_s: float | None
    ttft_s: Spread | None
    itl_s: Spread | None
    tpot_s: Spread | None
    e2e_s: Spread | None
    send_lag_s: Spread | None
    """Delay between due and sent: large values mean that the load tool, not the server, was the bottleneck."""
    goodput: Goodput | None = None
    cost: Cost | None = None


def parse_objectives(text: str) -> Objectives:
    """
    Parse `ttft:500,tpot:50,e2e:5000`, in milliseconds.

    Raises:
        SettingsError: a name is unknown, or a value is not a positive number.
    """
    limits_s: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition(":")
        if name not in {"ttft", "tpot", "e2e"}:
            raise SettingsError(
                f"The objective is '{name}'; expected ttft, tpot or e2e, such as ttft:500,tpot:50 (ms)."
            )
        try:
            limits_s[f"{name}_s"] = float(value) / 1000
        except ValueError:
            raise SettingsError(f"The objective '{part}' needs a number of milliseconds, such as {name}:500.") from None
        if not limits_s[f"{name}_s"] > 0:
            raise SettingsError(f"The objective '{part}' must be above 0 ms.")
    return Objectives(**limits_s)


def percentile(sorted_values: Sequence[float], fraction: float) -> float:
    """Percentile by linear interpolation between the two nearest ranks. `sorted_values` ascend and are not empty."""
    position = fraction * (len(sorted_values) - 1)
    low, high = floor(position), ceil(position)
    return sorted_values[low] + (position - low) * (sorted_values[high] - sorted_values[low])


def spread(values: Iterable[float]) -> Spread | None:
    """Return the spread of the values, or None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p99 = (percentile(ordered, fraction) for fraction in (0.5, 0.9, 0.99))
    return Spread(mean=fmean(ordered), p50=p50, p90=p90, p99=p99, max=ordered[-1])


def summarise(
    records: Sequence[RequestRecord],
    *,
    objectives: Objectives = Objectives(),
    price_per_hour: float | None = None,
) -> Summary:
    """
    Summarise a run.

    The duration extends from the first due request to the end of the last answer, so it includes ramp-up and drain.
    """
    good = [record for record in records if record.failure is None]
    duration_s = max((r.end_s for r in records), default=0.0) - min((r.due_s for r in records), default=0.0)
    output_tokens = sum(record.num_output_tokens for record in good)
    prompt_tokens = _sum_if_known(record.prompt_tokens for record in good)
    total_tokens = None if prompt_tokens is None else prompt_tokens + output_tokens
    return Summary(
        num_requests=len(records),
        num_succeeded=len(good),
        failures=dict(Counter(str(record.failure) for record in records if record.failure is not None)),
        duration_s=duration_s,
        requests_per_s=_rate(len(good), duration_s),
        output_tokens=output_tokens,
        prompt_tokens=prompt_tokens,
        cached_tokens=_sum_if_known(record.cached_tokens for record in good),
        tokens_counted_by=_counted_by(good),
        output_tokens_per_s=_rate(output_tokens, duration_s),
        total_tokens_per_s=None if total_tokens is None else _rate(total_tokens, duration_s),
        ttft_s=spread(record.ttft_s for record in good),
        itl_s=spread(late - early for record in good for early, late in pairwise(record.text_at_s)),
        tpot_s=spread(record.tpot_s for record in good if record.tpot_s is not None),
        e2e_s=spread(record.e2e_s for record in good),
        send_lag_s=spread(record.sent_s - record.due_s for record in records),
        goodput=_goodput(records, objectives, duration_s) if objectives.any else None,
        cost=_cost(price_per_hour, duration_s, output_tokens, total_tokens),
    )


def _rate(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0


def _sum_if_known(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if not known or None in known else sum(count for count in known if count is not None)


def _counted_by(good: Sequence[RequestRecord]) -> str:
    kinds = {record.output_tokens is None for record in good}
    if len(kinds) == 2:
        return "mixed"
    return "streamed pieces" if True in kinds else "server usage"


def _goodput(records: Sequence[RequestRecord], objectives: Objectives, duration_s: float) -> Goodput:
    num_good = sum(objectives.met_by(record) for record in records)
    return Goodput(fraction=_rate(num_good, len(records)), requests_per_s=_rate(num_good, duration_s))


def _cost(price_per_hour: float | None, duration_s: float, output_tokens: int, total_tokens: int | None) -> Cost | None:
    if price_per_hour is None or not output_tokens:
        return None
    price = price_per_hour * duration_s / 3600
    return Cost(
        per_1k_output_tokens=1000 * price / output_tokens,
        per_1k_total_tokens=1000 * price / total_tokens if total_tokens else None,
    )
