"""
The traffic of the last hour, for the console's charts: requests, failures and latencies by endpoint.

Callers pass the time. Used by one thread, the event loop's. Memory is bounded: a limited number of endpoints, each with
a ring of short buckets for the last ten minutes and a ring of long buckets for the last hour. Exported metrics are
in `gateway.metrics`.
"""

import math
from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from headrace.platform.state.records import Json

SHORTEST_S = 1e-4
LONGEST_S = 1e3
GROWTH = 1.1
"""
Ratio of the widths of two adjacent bins.

The relative error of a quantile is at most `sqrt(GROWTH) - 1`, for durations from `SHORTEST_S` to `LONGEST_S`; others
are clamped to these.
"""

_LOG_GROWTH = math.log(GROWTH)
_LAST_BIN = math.ceil(math.log(LONGEST_S / SHORTEST_S) / _LOG_GROWTH) - 1


class LatencySketch:
    """
    The distribution of one kind of duration.

    Only the bins between the shortest and the longest duration seen are kept, at most 170 of four bytes.
    Source: the bins are those of DDSketch (Masson et al. 2019), with fixed ends.
    """

    __slots__ = ("_counts", "_first")

    def __init__(self) -> None:
        self._first = 0
        self._counts = array("I")

    def __len__(self) -> int:
        return sum(self._counts)

    def add(self, duration_s: float) -> None:
        if not duration_s > SHORTEST_S:  # NaN too
            index = 0
        elif duration_s >= LONGEST_S:
            index = _LAST_BIN
        else:
            index = min(int(math.log(duration_s / SHORTEST_S) / _LOG_GROWTH), _LAST_BIN)
        self._count(index, 1)

    def merge(self, other: "LatencySketch") -> None:
        for index, count in other.bins():
            self._count(index, count)

    def bins(self) -> Iterator[tuple[int, int]]:
        """Yield each bin that is not empty, shortest first, with its number of durations."""
        for offset, count in enumerate(self._counts):
            if count:
                yield self._first + offset, count

    @classmethod
    def of(cls, bins: Iterable[tuple[int, int]]) -> "LatencySketch":
        sketch = cls()
        for index, count in bins:
            sketch._count(index, count)
        return sketch

    def quantile(self, share: float) -> float | None:
        """Return the duration, seconds, that `share` (0 to 1) of all durations do not exceed; None without any."""
        rank = math.ceil(share * len(self))
        seen = 0
        for index, count in self.bins():
            seen += count
            if seen >= rank:
                return SHORTEST_S * math.exp(_LOG_GROWTH * (index + 0.5))
        return None

    def _count(self, index: int, count: int) -> None:
        counts = self._counts
        if not counts:
            self._first = index
        if index < self._first:
            self._counts = counts = array("I", bytes(counts.itemsize * (self._first - index))) + counts
            self._first = index
        missing = index - self._first + 1 - len(counts)
        if missing > 0:
            counts.frombytes(bytes(counts.itemsize * missing))
        counts[index - self._first] += count


MAX_ENDPOINTS = 1000
"""Endpoints in memory; above this the one with the oldest last request is evicted."""
MAX_VARIANTS = 20
"""Variants of an endpoint that are counted separately. AWS allows ten, and as many shadow variants."""
RATE_WINDOW_S = 60.0
"""Shortest time that `rates` looks back."""

_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_MODEL_ERROR = 424
"""Status of a model error. It counts as failed, although it is a 4xx: the caller is not at fault."""
_CLIENT_GONE = 499
"""Status of a request whose client disconnected: neither failed nor refused."""


@dataclass(slots=True)
class _Bucket:
    """The requests of one interval, from `index * bucket_s` to the start of the next bucket."""

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

    def merge(self, other: "_Bucket") -> None:
        self.requests += other.requests
        self.refused += other.refused
        self.failed += other.failed
        for variant, count in other.variants.items():
            self.variants[variant] = self.variants.get(variant, 0) + count
        self.first_byte.merge(other.first_byte)
        self.total.merge(other.total)

    def to_json(self) -> Json:
        bins = {"first_byte": list(self.first_byte.bins()), "total": list(self.total.bins())}
        counts = {name: getattr(self, name) for name in ("index", "requests", "refused", "failed", "variants")}
        return {**counts, **bins}

    @classmethod
    def from_json(cls, json: Json) -> "_Bucket":
        sketches = {name: LatencySketch.of(json[name]) for name in ("first_byte", "total")}
        return cls(**{**json, **sketches})


class _Ring:
    """A ring of the newest buckets of one length."""

    __slots__ = ("_buckets", "bucket_s")

    def __init__(self, bucket_s: float, num: int) -> None:
        self.bucket_s = bucket_s
        self._buckets: list[_Bucket | None] = [None] * num

    def bucket_at(self, now_s: float) -> _Bucket:
        """Return the bucket of `now_s`; a new one replaces the oldest."""
        index = int(now_s // self.bucket_s)
        slot = index % len(self._buckets)
        bucket = self._buckets[slot]
        if bucket is None or bucket.index != index:  # NOTE: also if the clock was set back
            self._buckets[slot] = bucket = _Bucket(index)
        return bucket

    def merge(self, other: _Bucket) -> None:
        """Add the requests of a bucket, unless it is older than the ring."""
        slot = other.index % len(self._buckets)
        bucket = self._buckets[slot]
        if bucket is None or bucket.index < other.index:
            self._buckets[slot] = bucket = _Bucket(other.index)
        if bucket.index == other.index:
            bucket.merge(other)

    def between(self, since_s: float, now_s: float) -> Iterator[_Bucket]:
        """Yield the buckets from `since_s` to `now_s`, oldest first; intervals without requests have empty ones."""
        last = int(now_s // self.bucket_s)
        first = min(max(int(since_s // self.bucket_s), last - len(self._buckets) + 1), last)
        for index in range(first, last + 1):
            bucket = self._buckets[index % len(self._buckets)]
            yield bucket if bucket is not None and bucket.index == index else _Bucket(index)

    @property
    def length_s(self) -> float:
        """Seconds that the ring covers at least."""
        return (len(self._buckets) - 1) * self.bucket_s


def _new_rings() -> dict[str, _Ring]:
    return {"short": _Ring(5.0, 121), "long": _Ring(60.0, 61)}


class TrafficHistory:
    def __init__(self, *, max_endpoints: int = MAX_ENDPOINTS) -> None:
        self._max_endpoints = max_endpoints
        self._endpoints: OrderedDict[str, dict[str, _Ring]] = OrderedDict()

    def record(
        self, endpoint: str, variant: str, status: int, first_byte_s: float | None, total_s: float, now_s: float
    ) -> None:
        """
        Record a request that has ended.

        The endpoint must exist: clients could fill the memory with other names. The status is 424 for a broken stream,
        499 for a client that disconnected. 424 and 5xx count as failed, other 4xx as refused, except 499. Latencies,
        from the arrival of the request, are recorded below 400 only: refusals are fast, and timeouts are not responses.
        """
        known = self._endpoints.get(endpoint)
        if known is None:
            known = self._endpoints[endpoint] = _new_rings()
            if len(self._endpoints) > self._max_endpoints:
                self._endpoints.popitem(last=False)
        else:
            self._endpoints.move_to_end(endpoint)
        for ring in known.values():
            ring.bucket_at(now_s).record(variant, status, first_byte_s, total_s)

    def series(self, endpoint: str, *, since_s: float, now_s: float) -> Json:
        """
        Return the values of a chart: one for each bucket from `since_s`, at most an hour ago, until now.

        Buckets are 5 s long if `since_s` is at most 10 minutes ago, else 60 s; the last one is incomplete. Quantiles
        are None for buckets without responses.
        """
        rings = self._endpoints.get(endpoint) or _new_rings()
        ring = rings["short" if now_s - since_s <= rings["short"].length_s else "long"]
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

    def snapshot(self, endpoints: Collection[str] | None, *, since_s: float, now_s: float) -> Json:
        """Return the buckets since `since_s` as a JSON value for `merged`; None: of all endpoints."""
        names = self._endpoints.keys() if endpoints is None else self._endpoints.keys() & set(endpoints)
        return {
            name: {
                kind: [bucket.to_json() for bucket in ring.between(since_s, now_s) if bucket.requests]
                for kind, ring in self._endpoints[name].items()
            }
            for name in names
        }

    @classmethod
    def merged(cls, snapshots: Iterable[Json]) -> "TrafficHistory":
        merged = cls()
        for snapshot in snapshots:
            for name, buckets in snapshot.items():
                rings = merged._endpoints.setdefault(name, _new_rings())
                for kind, ring in rings.items():
                    for bucket in buckets[kind]:
                        ring.merge(_Bucket.from_json(bucket))
        return merged

    def requests_per_s(self, *, now_s: float) -> float:
        return sum((rate["requests_per_s"] for rate in self.rates(self._endpoints, now_s=now_s).values()), 0.0)

    def rates(self, endpoints: Iterable[str], *, now_s: float) -> dict[str, Json]:
        """Return the request rate, failure rate and median time to first byte of endpoints busy in the last minute."""
        found = {}
        for name in endpoints:
            if name not in self._endpoints:
                continue
            ring = self._endpoints[name]["short"]
            buckets = list(ring.between(now_s - RATE_WINDOW_S, now_s))
            if num := sum(bucket.requests for bucket in buckets):
                covered_s = now_s - buckets[0].index * ring.bucket_s
                first_byte = LatencySketch()
                for bucket in buckets:
                    first_byte.merge(bucket.first_byte)
                found[name] = {
                    "requests_per_s": num / covered_s,
                    "failed_per_s": sum(bucket.failed for bucket in buckets) / covered_s,
                    "first_byte_p50_ms": _ms(first_byte.quantile(0.5)),
                }
        return found


def _quantiles_ms(sketches: list[LatencySketch]) -> Json:
    return {name: [_ms(sketch.quantile(share)) for sketch in sketches] for name, share in _QUANTILES.items()}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
