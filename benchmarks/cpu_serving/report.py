"""Markdown tables of a result, and the goals that they judge. Pure functions of the result's JSON object."""

import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.cpu_serving.cells import CELLS, Cell
from benchmarks.cpu_serving.servers import ROWS
from benchmarks.harness.results import table

Against = Literal["number", "best peer"]
HIGHER_IS_BETTER = frozenset({"output_tokens_per_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One figure of one cell, compared with a number or the best peer of the same run."""

    cell: str
    figure: str
    against: Against
    bound: float
    """The number, or the multiple of the best peer."""

    @property
    def wants_more(self) -> bool:
        return self.figure in HIGHER_IS_BETTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A goal and whether it was reached."""

    goal: Goal
    ours: float
    measured: float
    """`ours`, or `ours` as a multiple of the best peer."""
    hit: bool


GOALS: tuple[Goal, ...] = (
    Goal(cell="c1", figure="output_tokens_per_s", against="number", bound=450),
    Goal(cell="c1", figure="output_tokens_per_s", against="best peer", bound=2.3),
    Goal(cell="c1", figure="ttft_p50_ms", against="number", bound=40),
    Goal(cell="c1", figure="ttft_p50_ms", against="best peer", bound=0.5),
    Goal(cell="c8", figure="output_tokens_per_s", against="number", bound=1000),
    Goal(cell="c8", figure="output_tokens_per_s", against="best peer", bound=2.6),
    Goal(cell="c8", figure="ttft_p50_ms", against="number", bound=200),
    Goal(cell="c8", figure="ttft_p50_ms", against="best peer", bound=0.42),
    Goal(cell="c32", figure="output_tokens_per_s", against="number", bound=1300),
    Goal(cell="c32", figure="output_tokens_per_s", against="best peer", bound=2.65),
    Goal(cell="c32", figure="ttft_p50_ms", against="number", bound=600),
    Goal(cell="c32", figure="ttft_p50_ms", against="best peer", bound=0.38),
    Goal(cell="c32", figure="itl_p99_ms", against="best peer", bound=1.0),
    Goal(cell="shared", figure="ttft_p50_ms", against="best peer", bound=1.0),
    Goal(cell="late", figure="gap_max_ms", against="number", bound=100),
    Goal(cell="late", figure="gap_max_ms", against="best peer", bound=1.0),
)
"""A ratio is the absolute goal divided by the best peer on the machine that it was set on."""


def best(values: Mapping[str, float], *, figure: str) -> tuple[str, float] | None:
    """Return the row with the best value of a figure; None if there is no row."""
    if not values:
        return None
    choose: Callable[..., str] = max if figure in HIGHER_IS_BETTER else min
    name = choose(values, key=lambda row: values[row])
    return name, values[name]


def judge(goal: Goal, *, ours: Mapping[str, float], peers: Mapping[str, float]) -> Verdict | None:
    """
    Return whether our best row reached a goal.

    Args:
        goal: The goal.
        ours: Its figure by row of ours.
        peers: The same by row of a peer.

    Returns:
        None if there is no measurement to compare with.
    """
    our_best, peer_best = best(ours, figure=goal.figure), best(peers, figure=goal.figure)
    if our_best is None or (goal.against == "best peer" and peer_best is None):
        return None
    measured = our_best[1]
    if goal.against == "best peer" and peer_best is not None:
        measured /= peer_best[1]
    compare = operator.ge if goal.wants_more else operator.le
    return Verdict(goal=goal, ours=our_best[1], measured=measured, hit=compare(measured, goal.bound))


Medians = dict[str, dict[str, dict[str, float]]]
"""Median of a figure over the rounds, by cell, row and figure."""

_COLUMNS = (
    ("output_tokens_per_s", "tok/s"),
    ("ttft_p50_ms", "TTFT p50 ms"),
    ("ttft_p99_ms", "p99"),
    ("itl_p50_ms", "ITL p50 ms"),
    ("itl_p99_ms", "p99"),
    ("server_cpu_s_per_1k_tokens", "server CPU s/1k tok"),
    ("tool_cpu_s_per_1k_tokens", "tool CPU s/1k tok"),
    ("foreign_cores", "cores used by others"),
)
_LATE_COLUMNS = (
    ("gap_max_ms", "longest gap ms"),
    ("gap_p99_ms", "p99 gap ms"),
    ("late_ttft_ms", "its TTFT ms"),
    ("output_tokens_per_s", "tok/s in all"),
)


def medians(runs: Sequence[Mapping[str, Any]]) -> Medians:
    """Return the median of every figure over the runs that did not fail."""
    values: dict[str, dict[str, dict[str, list[float]]]] = {}
    for run in runs:
        for figure, value in run.get("figures", {}).items():
            values.setdefault(run["cell"], {}).setdefault(run["row"], {}).setdefault(figure, []).append(value)
    return {
        cell: {
            row: {figure: statistics.median(found) for figure, found in figures.items()}
            for row, figures in rows.items()
        }
        for cell, rows in values.items()
    }


def write_report(result: Mapping[str, Any]) -> str:
    found = medians(result["runs"])
    environment = result["environment"]
    method = (
        f"{environment['cpu']}, {environment['cpus_usable']} CPUs, {environment['time']}, seed {result['seed']}, "
        f"median of the runs. Load tool: {result['load_tool']}, on the same CPUs. "
        "Method and caveats: [README](../cpu_serving/README.md). Ratios are to the best peer of the cell."
    )
    if result.get("isa"):
        kernels = f"{result['isa']} kernels, for which the peers were compiled"
        method += f" Headrace ran its {kernels}; the goals are those of AVX-512."
    parts = [
        "# Serving over HTTP on a CPU",
        method,
        *(_cell_section(cell, found[cell.name], result["runs"]) for cell in CELLS if cell.name in found),
        _goal_section(found),
        _start_section(result),
        _failure_section(result["runs"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cell_section(cell: Cell, rows: Mapping[str, Mapping[str, float]], runs: Sequence[Mapping[str, Any]]) -> str:
    columns = _LATE_COLUMNS if cell.kind == "late" else _COLUMNS
    lead = columns[0][0]
    known = [row for row in ROWS if row.name in rows]
    peers = {row.name: rows[row.name][lead] for row in known if not row.is_ours and row.counts}
    peer = best(peers, figure=lead)
    lines = []
    for row in known:
        figures = rows[row.name]
        ratio = f"{figures[lead] / peer[1]:.2f}" if peer else ""
        number = sum(run["cell"] == cell.name and run["row"] == row.name and "figures" in run for run in runs)
        lines.append([row.title, str(number), ratio, *(_number(figures[name]) for name, _ in columns)])
    header = ["server", "runs", f"{columns[0][1]}, ratio", *(title for _, title in columns)]
    return f"## {cell.title}\n\n{table(header, lines)}"


def _goal_section(found: Medians) -> str:
    titles = {cell.name: cell.title for cell in CELLS}
    lines = []
    for goal in GOALS:
        rows = found.get(goal.cell, {})
        ours, peers = (
            {
                row.name: rows[row.name][goal.figure]
                for row in ROWS
                if row.is_ours == is_ours and row.counts and goal.figure in rows.get(row.name, {})
            }
            for is_ours in (True, False)
        )
        verdict = judge(goal, ours=ours, peers=peers)
        if verdict is not None:
            unit = "x the best peer" if goal.against == "best peer" else ""
            wanted = f"{'≥' if goal.wants_more else '≤'} {goal.bound:g} {unit}".strip()
            outcome = "hit" if verdict.hit else "**missed**"
            lines.append([titles[goal.cell], goal.figure, wanted, _number(verdict.measured), outcome])
    if not lines:
        return ""
    header = ["cell", "figure", "goal", "measured", ""]
    note = (
        "Absolute goals were set on a machine whose cores do twice the work a cycle; ratios carry over.\n"
        "Our best row counts, against the best peer."
    )
    return f"## Goals\n\n{note}\n\n{table(header, lines)}"


def _start_section(result: Mapping[str, Any]) -> str:
    lines = []
    for row in ROWS:
        starts = [start for start in result["starts"] if start["row"] == row.name]
        if not starts:
            continue
        first = [start["start_s"] for start in result.get("first_starts", []) if start["row"] == row.name]
        held = [run["peak_rss_bytes"] for run in result["runs"] if run["row"] == row.name and "peak_rss_bytes" in run]
        pss = [run["pss_bytes"] for run in result["runs"] if run["row"] == row.name and "pss_bytes" in run]
        lines.append(
            [
                row.title,
                _number(statistics.median(start["start_s"] for start in starts)),
                _number(statistics.median(first)) if first else "",
                f"{statistics.median(start['idle_cpu_share'] for start in starts):.2%}",
                _mib(statistics.median(start["pss_bytes"] for start in starts)),
                _mib(max(pss, default=0)),
                _mib(max(held, default=0)),
                _mib(planned) if (planned := result.get("planned_bytes", {}).get(row.name)) else "",
            ]
        )
    header = ["server", "start to first token s", "first time s", "idle CPU of a core", "idle PSS MiB"]
    header += ["largest PSS after a cell MiB", "peak RSS MiB", "planned MiB"]
    return f"## Start, idle, memory\n\n{table(header, lines)}" if lines else ""


def _failure_section(runs: Sequence[Mapping[str, Any]]) -> str:
    failures = [
        f"- {run['row']}, {run['cell']}, round {run['round']}: {run['error']}" for run in runs if "error" in run
    ]
    return "## Runs that failed\n\n" + "\n".join(failures) if failures else ""


def _number(value: float) -> str:
    """Format with three significant digits."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.0f}"
