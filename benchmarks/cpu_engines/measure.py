"""Take the measurements: start engines, let them take turns, keep every figure."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.cpu_engines.cells import START, Cell, make_prompts
from benchmarks.cpu_engines.engines import Row
from benchmarks.harness.machine import BandwidthProbe
from benchmarks.harness.proc import foreign_cores, read_usage
from benchmarks.harness.worker_process import Worker, WorkerFailed
from benchmarks.peers.manifest import Manifest

WORKERS = Path(__file__).parent / "workers"
HOPELESS_SHARE = 0.7
"""A slow row of a peer below this share of the best peer's speed is not measured again."""
DISTURBED_CORES = 0.1
"""Cores used by other processes above which a measurement is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement."""

    cell: str
    seconds: float
    tokens_per_s: float | None
    """None for the start."""
    read_gb_s: float
    """Memory bandwidth just before the measurement."""
    foreign_cores: float
    """Cores that other processes used during the measurement."""

    @property
    def is_disturbed(self) -> bool:
        """True if other processes used so much CPU time that the figure is unreliable."""
        return self.foreign_cores > DISTURBED_CORES

    def __str__(self) -> str:
        speed = "" if self.tokens_per_s is None else f"{self.tokens_per_s:,.0f} tok/s, "
        noise = f", others took {self.foreign_cores:.2f} cores" if self.is_disturbed else ""
        return f"{speed}{self.seconds:.2f} s at {self.read_gb_s:.0f} GB/s{noise}"


@dataclass(slots=True, kw_only=True)
class Measured:
    """All measurements and failures of one row."""

    row: Row
    description: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Reasons for missing figures, by cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Numbers of runs, starts and repetitions."""

    cells: tuple[Cell, ...]
    runs: int
    starts: int
    """Fresh processes for the start to the first token."""
    long_s: float = 5.0
    """A longer measurement is repeated only if it may be the best peer's."""
    retries: int = 1
    """How often a disturbed measurement is repeated."""
    timeout_s: float = 300.0
    seed: int = 1
    vocab_size: int = 49152


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The peers with their model files, and the folder for logs."""

    manifest: Manifest
    threads: int
    """Physical cores."""
    logs: Path


class Contest:
    """Engines side by side; use it in a `with` block, which ends their processes."""

    def __init__(
        self,
        rows: Sequence[Row],
        place: Place,
        plan: Plan,
        *,
        tell: Callable[[str], None],
        save: Callable[[Sequence[Measured]], object],
    ) -> None:
        self.measured = [Measured(row=row) for row in rows]
        self._place = place
        self._plan = plan
        self._tell = tell
        self._save = save
        self._probe = BandwidthProbe(place.threads)
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.close()

    def run(self) -> None:
        """Start everything, then go through the cells."""
        for measured in self.measured:
            worker = self._start(measured)
            if worker is not None:
                self._workers[measured.row.name] = worker
        for number in range(1, self._plan.starts):
            for measured in self._still_wanted(START):
                self._tell(f"start {number + 1}/{self._plan.starts}: {measured.row.name}")
                worker = self._start(measured)
                if worker is not None:
                    worker.close()
        self._save(self.measured)
        for cell in self._plan.cells:
            for number in range(self._plan.runs):
                for measured in self._still_wanted(cell.name):
                    for _ in range(1 + self._plan.retries):
                        if not self._generate(measured, cell, number):
                            break
            self._save(self.measured)

    def _still_wanted(self, cell_name: str) -> Iterator[Measured]:
        """Return the rows that can and should be measured (again)."""
        for measured in self.measured:
            can_be = measured.row.name in self._workers and cell_name not in measured.failures
            is_asked = cell_name == START or not measured.row.starts_only
            if can_be and is_asked and not self._is_hopeless(measured, cell_name):
                yield measured

    def _is_hopeless(self, measured: Measured, cell_name: str) -> bool:
        """Return whether a long measurement of a peer is already known to be far from the best peer's."""
        peers = {
            other.row.name: [sample.seconds for sample in other.samples if sample.cell == cell_name]
            for other in self.measured
            if not other.row.is_ours
        }
        taken = peers.get(measured.row.name)
        if not taken or min(taken) < self._plan.long_s:
            return False
        best_s = min(seconds for own in peers.values() for seconds in own)
        return min(taken) * HOPELESS_SHARE > best_s

    def _start(self, measured: Measured) -> Worker | None:
        row, manifest = measured.row, self._place.manifest
        gb_s = self._probe.measure_gb_s()
        try:
            settings = row.settings(manifest, self._place.threads)
            python = sys.executable if row.uses_our_python else manifest.peers[row.family].python
        except KeyError as error:
            self._failed(measured, START, f"{error} is not installed.")
            return None
        script = WORKERS / (row.script or f"{row.family}_worker.py")
        log = self._place.logs / f"{row.name.replace(' ', '-')}.log"
        worker = Worker(script, python=python, settings=settings, environment=row.environment, log=log)
        before = read_usage(worker.group)
        try:
            seconds, measured.description = worker.wait_ready(timeout_s=self._plan.timeout_s)
        except WorkerFailed as error:
            worker.close()
            self._failed(measured, START, str(error))
            return None
        except BaseException:
            worker.close()
            raise
        sample = Sample(
            cell=START,
            seconds=seconds,
            tokens_per_s=None,
            read_gb_s=gb_s,
            foreign_cores=foreign_cores(before, read_usage(worker.group)),
        )
        measured.samples.append(sample)
        self._tell(f"start: {row.name}: {sample}")
        return worker

    def _generate(self, measured: Measured, cell: Cell, number: int) -> bool:
        """Take one measurement; return whether it was disturbed and should be repeated."""
        worker = self._workers[measured.row.name]
        prompts = make_prompts(cell, seed=self._plan.seed + number, vocab_size=self._plan.vocab_size)
        gb_s = self._probe.measure_gb_s()
        before = read_usage(worker.group)
        try:
            seconds = generate(worker, prompts, cell.output_tokens, timeout_s=self._plan.timeout_s)
        except WorkerFailed as error:
            self._failed(measured, cell.name, str(error))
            self._workers.pop(measured.row.name).close()
            return False
        sample = Sample(
            cell=cell.name,
            seconds=seconds,
            tokens_per_s=cell.counted_tokens / seconds,
            read_gb_s=gb_s,
            foreign_cores=foreign_cores(before, read_usage(worker.group)),
        )
        measured.samples.append(sample)
        self._tell(f"{cell.name} {number + 1}/{self._plan.runs}: {measured.row.name}: {sample}")
        return sample.is_disturbed

    def _failed(self, measured: Measured, cell_name: str, why: str) -> None:
        measured.failures[cell_name] = why
        self._tell(f"{cell_name}: {measured.row.name} FAILED: {why}")


def generate(worker: Worker, prompts: list[list[int]], num_tokens: int, *, timeout_s: float) -> float:
    """
    Run one cell, and return the seconds that it took.

    Raises:
        WorkerFailed: It failed, took too long, or generated another number of tokens than requested.
    """
    answer = worker.ask({"prompts": prompts, "num_tokens": num_tokens}, timeout_s=timeout_s)
    made = answer["output_tokens"]
    if made != [num_tokens] * len(prompts):
        raise WorkerFailed(f"Made {made} tokens; expected {num_tokens} for each of {len(prompts)} prompts.")
    return float(answer["seconds"])
