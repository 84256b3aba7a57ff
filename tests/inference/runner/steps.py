"""Handmade steps for tests of runners."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from headrace.inference.runner.sampling import stack_sampling
from headrace.inference.runner.step import StepInput

Piece = tuple[Sequence[int], int, Sequence[int]]
"""The tokens of a sequence in the step, the number of earlier tokens, and its blocks."""


def make_step(
    *pieces: Piece,
    sampling: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
    all_rows: bool = False,
    **extras,
) -> StepInput:
    """Return a step that requests the logits of each piece's last token, or of all tokens."""
    lengths = [len(tokens) for tokens, _, _ in pieces]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    rows = np.arange(starts[-1], dtype=np.int32) if all_rows else starts[1:] - 1
    fields = [sampling or {}] * len(rows) if sampling is None or isinstance(sampling, Mapping) else sampling
    tables = np.zeros((len(pieces), max(len(blocks) for _, _, blocks in pieces)), np.int32)
    for table, (_, _, blocks) in zip(tables, pieces, strict=True):
        table[: len(blocks)] = blocks
    return StepInput(
        token_ids=np.array([token for tokens, _, _ in pieces for token in tokens], np.int32),
        query_starts=starts,
        context_lens=np.array([context for _, context, _ in pieces], np.int32),
        block_tables=tables,
        rows=rows.astype(np.int32),
        sampling=stack_sampling(fields),
        **extras,
    )


def with_random_rows(step: StepInput, rng: np.random.Generator) -> StepInput:
    """Return a step that requests the logits of all its tokens, of some, of few or of none."""
    is_needed = rng.random(len(step.token_ids)) < rng.choice([1, 0.5, 0.05, 0], p=[0.3, 0.3, 0.3, 0.1])
    return replace(step, rows=np.flatnonzero(is_needed).astype(np.int32), sampling=step.sampling[: is_needed.sum()])
