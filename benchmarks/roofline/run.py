"""
Measure the share of the machine's limits that the matrix products reach, at every shape. See README.md.

    python benchmarks/roofline/run.py smollm2

Writes benchmarks/results/roofline.json and .md.
"""

import json
import platform
import statistics
import sys
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace import _native
from headrace.inference.models.loading import load_model
from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.cpu import cpu_report, default_threads

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is started by its path, too

from benchmarks.harness import results

KINDS = ["w8a8", "w8a16", "w4a8", "w4a16", "bf16"]
ROWS = [1, 2, 4, 8, 16, 32, 64, 128, 512]
HEAD_ROWS = 64  # more are never computed at a time
BANDWIDTH_BYTES = 128 << 20
COPIES_BYTES = 160 << 20  # several times the largest cache
PASS_OPERATIONS = 4e9  # of one timed pass, unless the copies need more


@dataclass(frozen=True)
class Shape:
    """One matrix of the model, as stored in memory."""

    name: str
    num_outputs: int
    num_inputs: int


@dataclass(frozen=True)
class Cell:
    """One product: the best of some passes, the best of the roof beside them, and the shares of that roof."""

    isa: str
    kind: str
    shape: str
    rows: int
    seconds: float
    median_seconds: float
    bytes_per_s: float
    operations_per_s: float
    peak_bytes_per_s: float
    peak_operations_per_s: float

    @property
    def bandwidth_share(self) -> float:
        return self.bytes_per_s / self.peak_bytes_per_s

    @property
    def compute_share(self) -> float:
        return self.operations_per_s / self.peak_operations_per_s

    @property
    def share(self) -> float:
        return max(self.bandwidth_share, self.compute_share)


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def shapes_of(spec: ModelSpec) -> list[Shape]:
    """Return the matrices of a layer and the head, with their padding."""
    hidden, inputs = round_up(spec.hidden_size, 32), round_up(spec.hidden_size, 64)
    attention = spec.num_heads * spec.head_dim
    intermediate = round_up(spec.intermediate_size, 64)
    return [
        Shape("qkv", round_up(attention + 2 * spec.num_kv_heads * spec.head_dim, 32), inputs),
        Shape("o", hidden, round_up(attention, 64)),
        Shape("gate_up", 2 * intermediate, inputs),
        Shape("down", hidden, intermediate),
        Shape("lm_head", round_up(spec.vocab_size, 32), inputs),
    ]


class Roofline:
    """The measurements of one ISA."""

    def __init__(self, isa: str, arguments: Namespace) -> None:
        self.isa = isa
        self.threads = arguments.threads or default_threads()
        self.passes = arguments.passes
        self._memory = _native.Arena(BANDWIDTH_BYTES)
        self._memory.view()[:] = 1

    def bandwidth(self) -> float:
        """Return bytes per second, one reading."""
        return _native.read_bandwidth(self._memory, isa=self.isa, num_threads=self.threads)

    def peak(self, kind: str) -> float:
        """Return operations per second, one reading."""
        return _native.peak_operations(kind, isa=self.isa, num_threads=self.threads)

    def measure(self, kind: str, shape: Shape, rows: list[int]) -> list[Cell]:
        """Measure one matrix with all numbers of rows."""
        copy_bytes = shape.num_outputs * shape.num_inputs * (2 if kind == "bf16" else 1)
        timer = _native.ProductTimer(
            kind,
            shape.num_outputs,
            shape.num_inputs,
            num_copies=round_up(COPIES_BYTES, copy_bytes) // copy_bytes,
            isa=self.isa,
            num_threads=self.threads,
        )
        return [self._cell(timer, kind, shape, count) for count in rows]

    def _cell(self, timer: _native.ProductTimer, kind: str, shape: Shape, rows: int) -> Cell:
        operations = 2 * rows * shape.num_outputs * shape.num_inputs
        products = max(1, min(COPIES_BYTES // timer.matrix_bytes, int(PASS_OPERATIONS / operations)))
        timer.time(rows, 1)
        seconds, peaks, bandwidths = [], [], []
        for _ in range(self.passes):
            bandwidths.append(self.bandwidth())
            seconds.append(timer.time(rows, products) / products)
            peaks.append(self.peak(kind))
        best = min(seconds)
        return Cell(
            isa=self.isa,
            kind=kind,
            shape=shape.name,
            rows=rows,
            seconds=best,
            median_seconds=statistics.median(seconds),
            bytes_per_s=timer.matrix_bytes / best,
            operations_per_s=operations / best,
            peak_bytes_per_s=max(bandwidths),
            peak_operations_per_s=max(peaks),
        )


def table(cells: list[Cell], shapes: list[Shape], rows: list[int]) -> str:
    """Return the shares of one ISA and kind, a line per shape."""
    by_place = {(cell.shape, cell.rows): cell for cell in cells}
    lines = (
        [
            f"{shape.name} {shape.num_outputs}x{shape.num_inputs}",
            *(text_of(by_place.get((shape.name, count))) for count in rows),
        ]
        for shape in shapes
    )
    return results.table(["", *map(str, rows)], lines)


def text_of(cell: Cell | None) -> str:
    """Return the share, its bound, and the rate."""
    if cell is None:
        return ""
    if cell.bandwidth_share >= cell.compute_share:
        return f"{cell.share:.0%} ({cell.bytes_per_s / 1e9:.0f} GB/s)"
    return f"**{cell.share:.0%}** ({cell.operations_per_s / 1e9:.0f} G/s)"


def page(model: str, machine: str, cells: list[Cell], shapes: list[Shape], rows: list[int]) -> str:
    head = (
        f"# Roofline of {model}\n\n{machine}\n\n"
        "Share of the roof by rows: of the read bandwidth, or (bold) of the dot products in registers,\n"
        "whichever is larger; in brackets the bytes of weights or the operations per second.\n"
        "See [the method](../roofline/README.md).\n"
    )
    sections = [head]
    for isa in dict.fromkeys(cell.isa for cell in cells):
        for kind in KINDS:
            mine = [cell for cell in cells if (cell.isa, cell.kind) == (isa, kind)]
            if not mine:
                continue
            peak = statistics.median(cell.peak_operations_per_s for cell in mine) / 1e9
            read = statistics.median(cell.peak_bytes_per_s for cell in mine) / 1e9
            roof = f"Roof: {read:.0f} GB/s, {peak:.0f} G operations/s."
            sections.append(f"## {isa}, {kind}\n\n{roof}\n\n{table(mine, shapes, rows)}\n")
    return "\n".join(sections)


def save(path: Path, model: str, machine: dict[str, object], cells: list[Cell]) -> None:
    """Write all numbers, one cell per line."""
    lines = [json.dumps({key: rounded(value) for key, value in shares(cell).items()}) for cell in cells]
    head = json.dumps({"model": model, "machine": machine})[:-1]
    path.write_text(head + ', "cells": [\n' + ",\n".join(lines) + "\n]}\n")


def shares(cell: Cell) -> dict[str, object]:
    return asdict(cell) | {"bandwidth_share": cell.bandwidth_share, "compute_share": cell.compute_share}


def rounded(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    parser = results.make_parser(__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--isas", type=results.names, default=_native.available_isas()[:1])
    parser.add_argument("--kinds", type=results.names, default=KINDS)
    parser.add_argument("--rows", type=results.numbers, default=ROWS)
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--name", default="roofline", help="of the files in benchmarks/results")
    arguments = parser.parse_args()
    shapes = shapes_of(load_model(arguments.model).spec)
    cells: list[Cell] = []
    for isa in arguments.isas:
        roofline = Roofline(isa, arguments)
        for kind in arguments.kinds:
            for shape in shapes:
                rows = [count for count in arguments.rows if shape.name != "lm_head" or count <= HEAD_ROWS]
                cells += roofline.measure(kind, shape, rows)
    report, model = cpu_report(), Path(arguments.model).name
    threads = arguments.threads or default_threads()
    machine: dict[str, object] = {
        "cpu": f"{platform.machine()}, {', '.join(report.features)}",
        "system": f"{platform.system()} {platform.release()}",
        "threads": threads,
    }
    text = page(model, f"{machine['cpu']}; {threads} threads.", cells, shapes, arguments.rows)
    print(text)
    save(results.RESULTS / f"{arguments.name}.json", model, machine, cells)
    (results.RESULTS / f"{arguments.name}.md").write_text(text)


if __name__ == "__main__":
    main()
