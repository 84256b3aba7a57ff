"""Result file and table from measurements. Pure except for the two files at the end."""

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu_engines.cells import START, Cell
from benchmarks.cpu_engines.limits import FORMATS, Ceilings, Shape, limit_tokens_per_s
from benchmarks.cpu_engines.measure import Measured, Place, Plan, Sample
from benchmarks.harness import results
from benchmarks.harness.machine import describe_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The inputs of the limits, except for the bandwidth, which is measured beside every figure."""

    shape: Shape
    operations_per_s: dict[str, float]


FIDELITY = results.RESULTS / "fidelity-smollm2.json"


def samples_of(measured: Measured, cell_name: str) -> list[Sample]:
    """Return the measurements that count: the undisturbed ones, or all if there are no others."""
    samples = [sample for sample in measured.samples if sample.cell == cell_name]
    return [sample for sample in samples if not sample.is_disturbed] or samples


def median_speed(measured: Measured, cell_name: str) -> float | None:
    """Return the median tokens a second; None if there is no measurement."""
    speeds = [sample.tokens_per_s for sample in samples_of(measured, cell_name) if sample.tokens_per_s]
    return statistics.median(speeds) if speeds else None


def median_start_s(measured: Measured) -> float | None:
    """Return the median seconds to the first token; None if there is no measurement."""
    seconds = [sample.seconds for sample in samples_of(measured, START)]
    return statistics.median(seconds) if seconds else None


def best(rows: Sequence[Measured], cell_name: str, *, ours: bool) -> tuple[Measured, float] | None:
    """Return the fastest row of Headrace, or of the peers, with its speed."""
    speeds = [
        (measured, speed)
        for measured in rows
        if measured.row.is_ours == ours and measured.row.counts and (speed := median_speed(measured, cell_name))
    ]
    return max(speeds, key=lambda pair: pair[1], default=None)


def table(rows: Sequence[Measured], cells: Sequence[Cell]) -> str:
    """Return the speeds, one line per row, and the ratio of our best to the best peer."""
    lines = [[m.row.name, *(_speed_text(m, cell) for cell in cells), _start_text(m)] for m in rows]
    ratios, goals = zip(*(_ratio_texts(rows, cell) for cell in cells), strict=True) if cells else ((), ())
    lines += [["**our best : best peer**", *ratios, ""], ["goal", *goals, ""]]
    return results.table(["", *(cell.title for cell in cells), "start to first token"], lines)


def _speed_text(measured: Measured, cell: Cell) -> str:
    speed = median_speed(measured, cell.name)
    if speed is None:
        return "failed" if measured.failures else "-"
    samples = samples_of(measured, cell.name)
    notes = ["1 run"] if len(samples) == 1 else []
    notes += ["disturbed"] if samples[0].is_disturbed else []
    return f"{speed:,.0f}" + (f" ({', '.join(notes)})" if notes else "")


def _start_text(measured: Measured) -> str:
    seconds = median_start_s(measured)
    return "failed" if seconds is None else f"{seconds:.1f} s"


def _ratio_texts(rows: Sequence[Measured], cell: Cell) -> tuple[str, str]:
    ours, peer = best(rows, cell.name, ours=True), best(rows, cell.name, ours=False)
    if ours is None or peer is None:
        return "-", f"{cell.goal_ratio:g}x"
    ratio = ours[1] / peer[1]
    verdict = "reached" if ratio >= cell.goal_ratio else "missed"
    return f"**{ratio:.2f}x**", f"{cell.goal_ratio:g}x: {verdict}"


def limits_table(rows: Sequence[Measured], cells: Sequence[Cell], hardware: Hardware) -> str:
    """Return the hardware's limit for our formats, the share that was reached, and what the formats cost in quality."""
    changes = perplexity_changes()
    lines = []
    for measured in rows:
        if measured.row.is_ours and measured.row.counts:
            change = changes.get((measured.row.weights, str(measured.description.get("kv"))))
            cost = "-" if change is None else f"{change:+.2f} %"
            lines.append([measured.row.name, *(_share_text(measured, cell, hardware) for cell in cells), cost])
    return results.table(["share of the limit", *(cell.title for cell in cells), "perplexity"], lines) if lines else ""


def _share_text(measured: Measured, cell: Cell, hardware: Hardware) -> str:
    speed = median_speed(measured, cell.name)
    if speed is None:
        return "-"
    gb_s = statistics.median(sample.read_gb_s for sample in samples_of(measured, cell.name))
    ceilings = Ceilings(read_bytes_per_s=gb_s * 1e9, operations_per_s=hardware.operations_per_s)
    limit = limit_tokens_per_s(cell, hardware.shape, FORMATS[measured.row.weights], ceilings)
    return f"{speed / limit:.0%} of {limit:,.0f}"


def perplexity_changes() -> dict[tuple[str, str], float]:
    """Return the change of perplexity in percent by weight and KV format, from the fidelity benchmark."""
    if not FIDELITY.is_file():
        return {}
    rows = json.loads(FIDELITY.read_text())["results"]
    return {(row["dtype"], row["kv_dtype"]): row["perplexity_change_percent"] for row in rows}


def failures_text(rows: Sequence[Measured]) -> str:
    """Return one line per failure; empty if there is none."""
    return "\n".join(
        f"- {measured.row.name}, {cell}: {why}" for measured in rows for cell, why in measured.failures.items()
    )


def result(rows: Sequence[Measured], plan: Plan, place: Place, hardware: Hardware) -> dict[str, Any]:
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": describe_machine(),
        "hardware": asdict(hardware),
        "threads": place.threads,
        "plan": asdict(plan),
        "versions": {name: peer.versions for name, peer in place.manifest.peers.items()},
        "rows": [
            {
                "name": measured.row.name,
                "family": measured.row.family,
                "weights": measured.row.weights,
                "environment": dict(measured.row.environment),
                "description": measured.description,
                "samples": [asdict(sample) for sample in measured.samples],
                "failures": measured.failures,
            }
            for measured in rows
        ],
    }


def write_result(rows: Sequence[Measured], plan: Plan, place: Place, hardware: Hardware, output: Path) -> str:
    """Write `output`.json and `output`.md, and return the text of the latter."""
    values = result(rows, plan, place, hardware)
    head = (
        f"{values['machine']['cpu']}, {place.threads} threads, {values['time']}. Tokens a second, medians of "
        f"{plan.runs} runs in turns. Made by `python -m benchmarks.cpu_engines.run`; method: ../cpu_engines/README.md."
    )
    parts = (head, table(rows, plan.cells), limits_table(rows, plan.cells, hardware), failures_text(rows))
    text = "\n\n".join(part for part in parts if part) + "\n"
    results.write_result(output.with_name(f"{output.name}.json"), values, text)
    return text
