"""The tables and sentences of the docs about several gateways, from the stored results."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.gateways.figures import ceiling_per_s
from benchmarks.harness.results import page_table

REQUESTS_PER_S: Final = 100_000
PIECES: Final = 128
LOAD: Final = 0.6
"""The share of a core's time that a gateway is planned to use."""


def note_of(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the remark of a run, if it has one."""
    if result["note"]:
        yield f"\n({result['note'][0].upper()}{result['note'][1:]}.)"


def gateways(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of setups, and what follows for the load of the page."""
    rows = result["summary"]
    shared = [row for row in rows if not row["is_pinned"]]
    pinned = {row["setup"]: row for row in rows if row["is_pinned"]}
    yield from note_of(result)
    cells = []
    for row in shared:
        found, alone, latency = row["requests"], pinned[row["setup"]]["requests"], row["latency"]
        share = found["per_s"] / ceiling_per_s(found, result["num_cores"])
        added = (f"{latency[f'added_{name}_ms']:.1f} ms" for name in ("p50", "p99"))
        rates = (
            f"{found['per_s']:,.0f}",
            f"{share:.0%}",
            f"{alone['per_s']:,.0f}",
            f"{alone['gateway_cpu_us']:,.0f} µs",
        )
        cells.append([row["setup"], *rates, *added])
    header = (
        "gateways",
        "requests/s, all on 2 cores",
        "of the ceiling",
        "gateways on 1 core",
        "CPU",
        "added p50",
        "p99",
    )
    *lines, _ = page_table(header, cells)
    yield from lines
    per_request = _cpu_us(pinned.values(), "requests")
    per_piece = _cpu_us(pinned.values(), "streams")
    yield (
        f"\nOn a core of their own, the gateways used {_span(per_request)} µs of CPU time for a short request and "
        f"{_span(per_piece)} µs for a streamed piece; several that share state need more than one alone."
    )
    requests, pieces = (_processes(max(costs), count) for costs, count in ((per_request, 1), (per_piece, PIECES)))
    yield (
        f"At the largest of these costs, {REQUESTS_PER_S:,} short requests a second need {requests:,} processes at "
        f"{LOAD:.0%} load; with {PIECES} streamed pieces each, {pieces:,}.\n"
    )


def _cpu_us(rows: Any, load: str) -> list[float]:
    return [row[load]["gateway_cpu_us"] for row in rows]


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def _processes(cpu_us: float, count: int) -> int:
    """Return the processes for the requests of a second, each with a count of things that cost CPU time."""
    return round(REQUESTS_PER_S * count * cpu_us * 1e-6 / LOAD)


def failover(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what clients of the second platform saw, the worst of all rounds."""
    yield from note_of(result)
    cells = []
    for killed, name in {"none": "none (control)", "leader": "the leader", "follower": "the follower"}.items():
        own = [row for row in result["rounds"] if row["killed"] == killed]
        streams, equal, requests, failed = (
            sum(row[key] for row in own) for key in ("streams", "equal", "requests", "failed_requests")
        )
        gap_ms, slowest_ms = (max(row[key] for row in own) for key in ("longest_gap_ms", "slowest_request_ms"))
        leads = [row["leads_after_s"] for row in own if row["leads_after_s"] is not None]
        worst = (f"{requests:,}", failed, f"{slowest_ms:.0f} ms", f"{max(leads):.1f} s" if leads else "")
        cells.append([name, streams, equal, f"{gap_ms:.0f} ms", *worst])
    header = ("killed", "streams", "complete and equal", "longest gap", "short requests", "failed", "slowest")
    yield from page_table((*header, "leads after"), cells)


def upgrade(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sums over all upgrades."""
    yield from note_of(result)
    rows = result["rounds"]
    sums = (f"{sum(row[key] for row in rows):,}" for key in ("requests", "streams", "failed"))
    header = ("platforms replaced", "requests", "streams", "failed")
    yield from page_table(header, [[2 * len(rows), *sums]], text_columns=0)
