"""Rates, CPU times and latencies of several gateways, from the cells of all rounds. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import results


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """A time in which all connections were kept busy."""

    setup: str
    load: str
    """`requests` or `streams`"""
    is_pinned: bool
    """All gateways on one core, the client and the worker on the other."""
    answers: int
    pieces: int
    """Of streams."""
    seconds: float
    gateway_cpu_s: float
    """Of all processes that serve."""
    worker_cpu_s: float
    client_cpu_s: float

    @property
    def units(self) -> int:
        """The number of things that are counted: pieces of streams, or requests."""
        return self.pieces if self.load == "streams" else self.answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """Latencies at a rate that leaves the machine mostly idle, seconds."""

    setup: str
    is_pinned: bool
    direct: tuple[float, ...]
    through: tuple[float, ...]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def busy_row(cells: Sequence[Busy]) -> dict[str, float]:
    """Return the medians of the rounds of one setup, and their lowest and highest rate."""
    rates = [cell.units / cell.seconds for cell in cells]
    row = {"per_s": statistics.median(rates), "per_s_min": min(rates), "per_s_max": max(rates)}
    for part in ("gateway", "worker", "client"):
        row[f"{part}_cpu_us"] = statistics.median(getattr(cell, f"{part}_cpu_s") / cell.units for cell in cells) * 1e6
    return row


def paced_row(cells: Sequence[Paced]) -> dict[str, float]:
    """Return the added latency, the median of the rounds' differences at the median and at the 99th percentile."""
    row = {}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        direct = [percentile(cell.direct, share) for cell in cells]
        through = [percentile(cell.through, share) for cell in cells]
        row[f"direct_{name}_ms"] = statistics.median(direct) * 1e3
        row[f"added_{name}_ms"] = statistics.median(b - a for a, b in zip(direct, through, strict=True)) * 1e3
    return row


def summary(busy: Sequence[Busy], paced: Sequence[Paced]) -> list[dict[str, Any]]:
    """Return one row for each setup, pinned or not."""
    rows = []
    for is_pinned in (False, True):
        for setup in dict.fromkeys(cell.setup for cell in busy):
            row: dict[str, Any] = {"setup": setup, "is_pinned": is_pinned}
            for load in ("requests", "streams"):
                own = [c for c in busy if (c.setup, c.load, c.is_pinned) == (setup, load, is_pinned)]
                if own:
                    row[load] = busy_row(own)
            if latencies := [c for c in paced if (c.setup, c.is_pinned) == (setup, is_pinned)]:
                row["latency"] = paced_row(latencies)
            if len(row) > 2:
                rows.append(row)
    return rows


def ceiling_per_s(row: Mapping[str, float], num_cores: int) -> float:
    """Return the answers a second if all cores did nothing else than this work."""
    return num_cores * 1e6 / (row["gateway_cpu_us"] + row["worker_cpu_us"] + row["client_cpu_us"])


def table(rows: Sequence[Mapping[str, Any]], *, num_cores: int) -> str:
    """Return the rows as Markdown tables: short requests with latencies, then streams."""
    requests, streams = [], []
    for row in rows:
        place = (row["setup"], "one for the gateways" if row["is_pinned"] else "shared by all")
        found, latency = row["requests"], row["latency"]
        share = "" if row["is_pinned"] else f"{found['per_s'] / ceiling_per_s(found, num_cores):.0%}"
        cpu = (f"{found['gateway_cpu_us']:.0f} us", f"{found['worker_cpu_us'] + found['client_cpu_us']:.0f} us")
        added = (f"{latency[f'added_{name}_ms']:.2f} ms" for name in ("p50", "p99"))
        requests.append([*place, f"{found['per_s']:,.0f}", share, *cpu, *added])
        found = row["streams"]
        cpu = (f"{found['gateway_cpu_us']:.1f} us", f"{found['worker_cpu_us'] + found['client_cpu_us']:.1f} us")
        streams.append([*place, f"{found['per_s']:,.0f}", *cpu])
    header = ["gateways", "cores", "requests/s", "of the ceiling", "gateway CPU a request", "worker, client"]
    first = results.table([*header, "p50", "p99"], requests, text_columns=2)
    header = ["gateways", "cores", "streamed pieces/s", "gateway CPU a piece", "worker and client"]
    return f"{first}\n\n{results.table(header, streams, text_columns=2)}\n"
