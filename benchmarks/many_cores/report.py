"""The page of a run: speeds and scaling by thread, the cost of synchronisation, and threads without work."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.results import table

Record = Mapping[str, Any]

METHOD = """\
Written by `benchmarks/many_cores/run.py`; the [README](../many_cores/README.md) describes the method.
Tokens a second are medians. In brackets: the scaling efficiency, which is the speed divided by that of one thread and
by the number of threads, and what the split of the work and the barriers allow where memory is no limit.
"""


def page(result: Record) -> str:
    machine, placement = result["machine"], result["placement"]
    nodes = ", ".join(f"{name}: CPUs {cpus}" for name, cpus in placement["numa_nodes"].items()) or "unknown"
    resident = ", ".join(f"{size} GB on {node}" for node, size in placement["resident_gb_by_node"].items())
    versions = "".join(f" llama.cpp {version}." for version in result["versions"].values())
    head = (
        f"# Steps on many cores\n\n{machine['cpu']}, {machine['physical_cores']} cores, {machine['isa']} kernels; "
        f"{result['date']}, {result['seconds']} s.{versions}\n"
        f"NUMA nodes: {nodes}{'; memory: ' + resident if resident else ''}. "
        f"{placement['pinned_threads']} of {placement['threads']} threads are pinned to a CPU.\n\n{METHOD}"
    )
    models = dict.fromkeys(cell["model"] for cell in result["cells"])
    parts = [head, "## Synchronisation", _synchronisation(result["synchronisation_us"])]
    for model in models:
        cells = [cell for cell in result["cells"] if cell["model"] == model]
        parts += [f"## {model}", _speeds(cells, result["synchronisation_us"]), _idle(cells)]
    return "\n".join(f"{part}\n" for part in parts)


def _synchronisation(costs: Mapping[int, Mapping[str, float]]) -> str:
    names = list(next(iter(costs.values())))
    rows = [[str(threads), *(f"{cost[name]:.2f}" for name in names)] for threads, cost in costs.items()]
    return table(["threads", *(f"{name}, µs" for name in names)], rows, text_columns=0)


def _speeds(cells: Sequence[Record], costs: Mapping[int, Mapping[str, float]]) -> str:
    counts = sorted({cell["threads"] for cell in cells})
    by_place = {(cell["engine"], cell["cell"], cell["threads"]): cell for cell in cells}
    rows = []
    for engine, name in dict.fromkeys((cell["engine"], cell["cell"]) for cell in cells):
        own = [by_place.get((engine, name, count)) for count in counts]
        rows.append([engine, name, *("" if cell is None else _speed(cell, own[0], costs) for cell in own)])
    return table(
        ["tokens/s", "", *("1 thread" if count == 1 else f"{count} threads" for count in counts)], rows, text_columns=2
    )


def _speed(cell: Record, first: Record | None, costs: Mapping[int, Mapping[str, float]]) -> str:
    """Return the speed, its efficiency and the possible one; all counts are relative to a single thread."""
    speed, threads = cell["tokens_per_s"], cell["threads"]
    if first is None or first["threads"] != 1 or threads == 1:
        return f"{speed:.1f}"
    efficiency = speed / first["tokens_per_s"] / threads
    possible = "" if cell["split"] is None else f" of {possible_efficiency(cell, first, costs):.0%}"
    few = cell["active_threads"] or threads
    dropped = f", {few:.1f} active" if few < threads - 0.05 else ""
    return f"{speed:.1f} ({efficiency:.0%}{possible}{dropped})"


def possible_efficiency(cell: Record, first: Record, costs: Mapping[int, Mapping[str, float]]) -> float:
    """Return the efficiency at which only idle threads and synchronisation cost time."""
    threads, split = cell["threads"], cell["split"]
    rows = float(cell["cell"].split()[1])
    alone_s, cost = rows / first["tokens_per_s"], costs[threads]
    together_s = alone_s / threads / split["busy"] + (split["barriers"] * cost["barrier"] + cost["run"]) / 1e6
    return alone_s / threads / together_s


def _idle(cells: Sequence[Record]) -> str:
    """Return the table of the phases in which threads have no work, at the largest number of threads."""
    threads = max(cell["threads"] for cell in cells)
    found = [cell for cell in cells if cell["threads"] == threads and cell["split"] is not None]
    rows = []
    for cell in found:
        split = cell["split"]
        phases = ", ".join(f"{name} {share:.0%}" for name, share in split["idle_phases"].items())
        rows.append([cell["engine"], cell["cell"], f"{split['busy']:.0%}", split["barriers"], phases])
    header = [f"{threads} threads", "", "busy", "barriers", "phases with idle threads, and their busy share"]
    return table(header, rows, text_columns=2)
