"""
The work of each thread in a step of a dense transformer: csrc/kernels/step.inl without clocks, caches or memory.

Costs are counted in multiplications of a matrix product. Attention and norms are converted by the estimates below, so
the model tells which phases leave threads idle, not how long a step takes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from headrace.inference.models.spec import ModelSpec

PANEL, DEPTH = 32, 64
BLOCK_ROWS, COLUMN_ROWS, COLUMN_ROWS_PER_THREAD, REDUNDANT_ROWS = 64, 128, 24, 2
"""The constants of csrc/model.h."""
KEY_COST = 4
"""Multiplications for each number of a key that a query meets: its product, its value and its share of the softmax."""
NORM_COST = 16
"""Multiplications for each number that is normed and quantized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a step between two barriers, split into units that one thread computes each."""

    name: str
    units: int
    unit_cost: float
    waits: bool = True
    """A barrier follows."""

    @property
    def cost(self) -> float:
        return self.units * self.unit_cost

    def longest(self, threads: int) -> float:
        """Return the cost of the thread with the most units."""
        return ceil(self.units / threads) * self.unit_cost

    def busy(self, threads: int) -> float:
        """Return the share of the threads' time in which they have work."""
        return self.cost / (threads * self.longest(threads))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The division of a step among threads, and what it leaves idle."""

    busy: float
    """The share of the threads' time in which they have work: at most this scaling efficiency is possible."""
    barriers: int
    idle_phases: dict[str, float]
    """The busy share of the phases that leave threads idle, by name."""


def split_step(
    spec: ModelSpec,
    *,
    rows: int,
    sequences: int,
    context: int,
    threads: int,
    tile_rows: int,
    logit_rows: int | None = None,
) -> Split:
    """
    Return how a step is split.

    `context` is the length of every sequence before the step; `logit_rows` None: one for each sequence.
    """
    if rows > min(COLUMN_ROWS, threads * COLUMN_ROWS_PER_THREAD):
        return _split_by_rows(spec, rows=rows, context=context, threads=threads)
    layer = list(_layer_phases(spec, rows, sequences, context, threads, tile_rows))
    head = list(_head_phases(spec, logit_rows or sequences, threads))
    embed = Phase(name="embed", units=rows, unit_cost=spec.hidden_size)
    phases = [embed, *(layer * spec.num_layers), *head]
    longest = sum(phase.longest(threads) for phase in phases)
    total = sum(phase.cost for phase in phases)
    shares = {phase.name: phase.busy(threads) for phase in layer + head}
    return Split(
        busy=total / (threads * longest),
        barriers=sum(phase.waits for phase in phases) if threads > 1 else 0,
        idle_phases={name: share for name, share in shares.items() if share < 1},
    )


def _layer_phases(
    spec: ModelSpec, rows: int, sequences: int, context: int, threads: int, tile_rows: int
) -> Iterator[Phase]:
    """Yield the phases of a layer that is split by panels and tiles of rows."""
    hidden, heads, keys = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    tiles = ceil(rows / tile_rows)

    def product(name: str, outputs: int, inputs: int, *, unit: int = PANEL) -> Phase:
        return Phase(name=name, units=ceil(outputs / unit) * tiles, unit_cost=unit * inputs * rows / tiles)

    yield _norm("attention norm", spec, rows, threads)
    yield product("qkv", heads + 2 * keys, hidden)
    whole_heads = rows == sequences and rows * spec.num_kv_heads >= 4 * threads
    units = rows * (spec.num_kv_heads if whole_heads else spec.num_heads)
    yield Phase(name="keys", units=rows * spec.num_kv_heads, unit_cost=spec.head_dim * NORM_COST, waits=not whole_heads)
    seen = (context + rows / sequences / 2 + 1) * rows * heads * KEY_COST
    yield Phase(name="attention", units=units, unit_cost=seen / units)
    yield product("o", hidden, heads)
    yield _norm("MLP norm", spec, rows, threads)
    width = spec.intermediate_size
    yield product("gate and up", 2 * width, hidden, unit=2 * DEPTH)
    yield product("down", hidden, width)


def _head_phases(spec: ModelSpec, logit_rows: int, threads: int) -> Iterator[Phase]:
    yield _norm("final norm", spec, logit_rows, threads)
    yield Phase(name="LM head", units=ceil(spec.vocab_size / PANEL), unit_cost=PANEL * spec.hidden_size * logit_rows)


def _norm(name: str, spec: ModelSpec, rows: int, threads: int) -> Phase:
    """Return the norms of rows and their quantization; every thread does all of it for few rows."""
    cost = spec.hidden_size * NORM_COST
    if rows <= REDUNDANT_ROWS:
        return Phase(name=name, units=threads, unit_cost=cost * rows, waits=False)
    return Phase(name=name, units=rows, unit_cost=cost)


def _split_by_rows(spec: ModelSpec, *, rows: int, context: int, threads: int) -> Split:
    """
    Simulate blocks of rows that threads take through whole layers, of a prompt of one sequence.

    A block of a layer waits for itself and for all blocks before it in the previous layer, whose keys it reads.
    """
    blocks = threads * ceil(rows / (threads * BLOCK_ROWS))
    starts = [rows * block // blocks for block in range(blocks + 1)]
    heads, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    row_cost = spec.hidden_size * (2 * heads + 2 * keys + 3 * spec.intermediate_size + 2 * NORM_COST)
    costs = []
    for first, end in pairwise(starts):
        seen = sum(range(context + first + 1, context + end + 1))
        costs.append((end - first) * row_cost + seen * heads * KEY_COST)
    free, finished = [0.0] * threads, [0.0] * blocks
    for _ in range(spec.num_layers):
        before = list(finished)
        for block, cost in enumerate(costs):
            thread = min(range(threads), key=free.__getitem__)
            finished[block] = free[thread] = max(free[thread], *before[: block + 1]) + cost
    busy = spec.num_layers * sum(costs) / (threads * max(finished))
    barriers = 2 if threads > 1 else 0  # before the LM head, and before sampling
    return Split(busy=busy, barriers=barriers, idle_phases={"blocks of rows": busy} if busy < 1 else {})
