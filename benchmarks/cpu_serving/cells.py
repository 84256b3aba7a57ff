"""The columns of the table: requests with their arrival times, and the trace for the load tool. Pure values."""

import json
from dataclasses import dataclass
from typing import Literal

from benchmarks.harness.results import choose, names

Kind = Literal["load", "shared", "late"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Requests of one length with a concurrency; optionally a long one that arrives later."""

    name: str
    title: str
    kind: Kind = "load"
    concurrency: int
    num_requests: int
    prompt_tokens: int = 128
    """Tokens of a prompt, including the shared ones."""
    output_tokens: int = 128
    shared_tokens: int = 0
    """Tokens of the prefix that all prompts share."""
    late_prompt_tokens: int = 0
    """Tokens of an additional prompt, which arrives while the others stream; 0: there is none."""
    late_at_s: float = 0.0
    late_output_tokens: int = 8

    @property
    def prefix_caching(self) -> bool:
        """True if prefix caches are on."""
        return self.shared_tokens > 0

    @property
    def warmups(self) -> int:
        """Warm-up requests: few, but one for each of a server's slots if these keep a prefix."""
        return self.concurrency if self.prefix_caching else min(self.concurrency, 2)

    @property
    def num_late(self) -> int:
        """Additional prompts: 1 or 0."""
        return 1 if self.late_prompt_tokens else 0

    @property
    def slots(self) -> int:
        """Requests that are in a server at the same time."""
        return self.concurrency + self.num_late

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Tokens of prompt and answer of each request of a run; the late one is the last."""
        late = [(self.late_prompt_tokens, self.late_output_tokens)] * self.num_late
        return [(self.prompt_tokens, self.output_tokens)] * self.num_requests + late

    @property
    def total_requests(self) -> int:
        return self.num_requests + self.num_late

    @property
    def total_output_tokens(self) -> int:
        return sum(answer for _, answer in self.lengths)

    @property
    def longest_sequence_tokens(self) -> int:
        """Prompt and answer of the longest request."""
        return max(map(sum, self.lengths))

    @property
    def piece_tokens(self) -> int:
        """Tokens that one entry of `hash_ids` of a trace stands for."""
        return self.shared_tokens or max(prompt for prompt, _ in self.lengths)


CELLS: tuple[Cell, ...] = (
    Cell(name="c1", title="C=1", concurrency=1, num_requests=6),
    Cell(name="c8", title="C=8", concurrency=8, num_requests=16),
    Cell(name="c32", title="C=32", concurrency=32, num_requests=64),
    Cell(name="c64", title="C=64", concurrency=64, num_requests=64),
    Cell(
        name="shared",
        title="1,000-token system prompt, C=8",
        kind="shared",
        concurrency=8,
        num_requests=32,
        prompt_tokens=1040,
        output_tokens=32,
        shared_tokens=1000,
    ),
    Cell(
        name="late",
        title="4,000-token prompt beside 8 streams",
        kind="late",
        concurrency=8,
        num_requests=8,
        prompt_tokens=64,
        output_tokens=384,
        late_prompt_tokens=4000,
        late_at_s=1.5,
    ),
)

_RUNS_APART = 1_000_000
_SEEDS_APART = 1_000 * _RUNS_APART


def trace_lines(cell: Cell, *, seed: int, number: int) -> list[str]:
    """
    Return the trace of one run as `vllm bench serve --dataset-name timed_trace` reads it: one JSON object a line.

    `hash_ids` stand for `piece_tokens` random token ids each, the same for the same id. No prompt returns in
    another run, so caches can only hold the shared prefix.
    """
    first = seed * _SEEDS_APART + number * _RUNS_APART
    common = [first] if cell.shared_tokens else []
    lines = []
    for index, (prompt_tokens, output_tokens) in enumerate(cell.lengths):
        is_late = index >= cell.num_requests
        entry = {
            "timestamp": cell.late_at_s if is_late else 0,
            "input_length": prompt_tokens,
            "output_length": output_tokens,
            "hash_ids": [*([] if is_late else common), first + 1 + index],
        }
        lines.append(json.dumps(entry))
    return lines


def choose_cells(text: str) -> tuple[Cell, ...]:
    """Return the cells with these names, separated by commas; all for an empty text. Raises KeyError."""
    return choose("cell", CELLS, names(text), lambda cell: {cell.name})
