"""
The traffic of the last hour, for the charts of the console: what the gateway answered, and how quickly.

Pure but for what it remembers: the time is given. Used by one thread, the event loop's. What is kept is bounded: a
number of endpoints, and for each a ring of short buckets for the last ten minutes and one of long buckets for the last
hour. Metrics that leave the platform are elsewhere (`gateway.metrics`).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headrace.gateway.latency_sketch import LatencySketch
from headrace.state.records import Json

MAX_ENDPOINTS = 1000
"""The one whose last request is longest ago is forgotten when there is one more."""
MAX_VARIANTS = 20
"""That are counted apart; AWS allows ten, and as many shadows."""
RATE_WINDOW_S = 60.0
"""Over which `rates` looks back, at least."""

_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_MODEL_ERROR = 424
"""The worker failed, whatever the number says: it is the platform's failure, not its caller's."""
_CLIENT_GONE = 499
"""Nothing was wrong: the caller did not want to hear the end."""


@dataclass(slots=True)
class _Bucket:
    """What happened between `index * bucket_s` and the next one."""

    index: int
    requests: int = 0
    refused: int = 0
    failed: int = 0
    variants: dict[str, int] = field(default_factory=dict)
    first_byte: LatencySketch = field(default_factory=LatencySketch)
    total: LatencySketch = field(default_factory=LatencySketch)

    def record(self, variant: str, status: int, first_byte_s: float | None, total_s: float) -> None:
        self.requests += 1
        if status >= 500 or status == _MODEL_ERROR:
            self.failed += 1
        elif status >= 400 and status != _CLIENT_GONE:
            self.refused += 1
        if variant in self.variants or len(self.variants) < MAX_VARIANTS:
            self.variants[variant] = self.variants.get(variant, 0) + 1
        if status < 400:
            self.total.add(total_s)
            if first_byte_s is not None:
                self.first_byte.add(first_byte_s)


class _Ring:
    """The newest buckets of one length."""

    __slots__ = ("_buckets", "bucket_s")

    def __init__(self, bucket_s: float, num: int) -> None:
        self.bucket_s = bucket_s
        self._buckets: list[_Bucket | None] = [None] * num

    def now(self, now_s: float) -> _Bucket:
        """The bucket of this moment; it takes the place of the oldest one."""
        index = int(now_s // self.bucket_s)
        place = index % len(self._buckets)
        bucket = self._buckets[place]
        if bucket is None or bucket.index != index:  # NOTE: also when the clock was set back
            self._buckets[place] = bucket = _Bucket(index)
        return bucket

    def between(self, since_s: float, now_s: float) -> Iterator[_Bucket]:
        """The buckets from one moment to another, oldest first, empty ones for those in which nothing happened."""
        last = int(now_s // self.bucket_s)
        first = min(max(int(since_s // self.bucket_s), last - len(self._buckets) + 1), last)
        for index in range(first, last + 1):
            bucket = self._buckets[index % len(self._buckets)]
            yield bucket if bucket is not None and bucket.index == index else _Bucket(index)

    @property
    def length_s(self) -> float:
        """How far back it reaches at least."""
        return (len(self._buckets) - 1) * self.bucket_s


class _EndpointHistory:
    __slots__ = ("long", "short")

    def __init__(self) -> None:
        self.short = _Ring(5.0, 121)
        self.long = _Ring(60.0, 61)

    def ring_for(self, since_s: float, now_s: float) -> _Ring:
        """The finest that reaches back so far."""
        return self.short if now_s - since_s <= self.short.length_s else self.long


class TrafficHistory:
    """Of all endpoints."""

    def __init__(self, *, max_endpoints: int = MAX_ENDPOINTS) -> None:
        self._max_endpoints = max_endpoints
        self._endpoints: OrderedDict[str, _EndpointHistory] = OrderedDict()

    def record(
        self, endpoint: str, variant: str, status: int, first_byte_s: float | None, total_s: float, now_s: float
    ) -> None:
        """
        Remember a request that has ended.

        Args:
            endpoint: its name. Only names of endpoints that exist: callers could fill the memory with others.
            variant: that answered; empty if it came to none.
            status: what the client was answered; 424 for a stream that broke off, 499 for a client that hung up.
                424 and from 500 on count as failed, the rest from 400 on as refused, but for 499. Times count
                below 400 only: refusals are quick, and time-outs are not answers.
            first_byte_s: from the request's arrival to the first byte of the answer; None if there was none.
            total_s: from the request's arrival to the end of the answer.
            now_s: seconds since 1970.
        """
        known = self._endpoints.get(endpoint)
        if known is None:
            known = self._endpoints[endpoint] = _EndpointHistory()
            if len(self._endpoints) > self._max_endpoints:
                self._endpoints.popitem(last=False)
        else:
            self._endpoints.move_to_end(endpoint)
        for ring in (known.short, known.long):
            ring.now(now_s).record(variant, status, first_byte_s, total_s)

    def series(self, endpoint: str, *, since_s: float, now_s: float) -> Json:
        """
        What a chart shows: one value a bucket, from `since_s` (at most an hour ago) until now.

        Buckets are 5 s long if `since_s` is at most 10 minutes ago, else 60 s; the last one has not ended. Quantiles
        are None where nothing was answered.
        """
        known = self._endpoints.get(endpoint) or _EndpointHistory()
        ring = known.ring_for(since_s, now_s)
        buckets = list(ring.between(since_s, now_s))
        variants = sorted({name for bucket in buckets for name in bucket.variants if name})
        return {
            "endpoint": endpoint,
            "now_s": now_s,
            "start_s": buckets[0].index * ring.bucket_s,
            "bucket_s": ring.bucket_s,
            "requests": [bucket.requests for bucket in buckets],
            "refused": [bucket.refused for bucket in buckets],
            "failed": [bucket.failed for bucket in buckets],
            "variants": {name: [bucket.variants.get(name, 0) for bucket in buckets] for name in variants},
            "first_byte_ms": _quantiles_ms([bucket.first_byte for bucket in buckets]),
            "total_ms": _quantiles_ms([bucket.total for bucket in buckets]),
        }

    def rates(self, endpoints: Iterable[str], *, now_s: float) -> dict[str, Json]:
        """Of each endpoint that had requests in the last minute: how many a second, and half of the first bytes."""
        found = {}
        for name in endpoints:
            known = self._endpoints.get(name)
            if known is None:
                continue
            buckets = list(known.short.between(now_s - RATE_WINDOW_S, now_s))
            if num := sum(bucket.requests for bucket in buckets):
                covered_s = now_s - buckets[0].index * known.short.bucket_s
                first_byte = _merged(bucket.first_byte for bucket in buckets)
                found[name] = {
                    "requests_per_s": num / covered_s,
                    "failed_per_s": sum(bucket.failed for bucket in buckets) / covered_s,
                    "first_byte_p50_ms": _ms(first_byte.quantile(0.5)),
                }
        return found


def _merged(sketches: Iterable[LatencySketch]) -> LatencySketch:
    together = LatencySketch()
    for sketch in sketches:
        together.merge(sketch)
    return together


def _quantiles_ms(sketches: list[LatencySketch]) -> Json:
    return {name: [_ms(sketch.quantile(share)) for sketch in sketches] for name, share in _QUANTILES.items()}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
