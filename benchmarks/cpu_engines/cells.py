"""The cells of the table: numbers of input and output tokens, and which tokens they are. Pure values."""

from dataclasses import dataclass

import numpy as np

START = "start"
"""The cell that measures a fresh process until its first token; it has no prompts of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A number of prompts of one length that arrive at once, and the tokens to generate for each."""

    name: str
    title: str
    num_prompts: int
    prompt_tokens: int
    output_tokens: int
    counts_prompts: bool = False
    """Speed is prompt and output tokens a second, not output tokens alone."""
    goal_ratio: float
    """The goal: how many times as fast as the best peer."""

    @property
    def counted_tokens(self) -> int:
        """Number of tokens that the speed counts."""
        each = self.output_tokens + (self.prompt_tokens if self.counts_prompts else 0)
        return each * self.num_prompts


CELLS: tuple[Cell, ...] = (
    Cell(name="n1", title="n=1", num_prompts=1, prompt_tokens=128, output_tokens=128, goal_ratio=2.5),
    Cell(name="n8", title="n=8", num_prompts=8, prompt_tokens=128, output_tokens=128, goal_ratio=3.8),
    Cell(name="n64", title="n=64", num_prompts=64, prompt_tokens=128, output_tokens=128, goal_ratio=2.5),
    Cell(
        name="prefill",
        title="16 x 1024 in/16 out, total",
        num_prompts=16,
        prompt_tokens=1024,
        output_tokens=16,
        counts_prompts=True,
        goal_ratio=1.65,
    ),
)


def make_prompts(cell: Cell, *, seed: int, vocab_size: int) -> list[list[int]]:
    """Return random token ids: the same for every engine, different in every run, so that no cache helps."""
    rng = np.random.default_rng((seed, cell.num_prompts, cell.prompt_tokens))
    prompts: list[list[int]] = rng.integers(0, vocab_size, (cell.num_prompts, cell.prompt_tokens)).tolist()
    return prompts
