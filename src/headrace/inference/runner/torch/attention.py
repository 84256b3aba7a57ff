"""
Attention over the paged KV cache, for steps that mix prompt chunks and decode tokens.

Letters in shapes: `T` tokens of the step, `C` tokens of one sequence in the step, `P` positions that it can see,
`H` query heads, `K` KV heads, `G` query heads for each KV head, `D` size of a key, `E` size of a value.
"""

from typing import Final

import torch
from torch import Tensor

from headrace.inference.runner.torch.batch import Scoring, StepTensors, uses_triton

MAX_SCORES: Final = 1 << 24
"""Scores that plain attention holds at a time, which bounds its memory in long prompts."""


def attend(  # noqa: PLR0913 -- the kinds of attention that models have
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: StepTensors,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    is_causal: bool = True,
) -> Tensor:
    """
    Attend to the sequences of a batch, whose new keys and values are in the cache already.

    Neither path lets a query's result depend on the other sequences of the batch.

    The query is (T, H, D), the caches (blocks, block_tokens, K, D) and (blocks, block_tokens, K, E), the result
    (T, H, E) in the type of the query. `Scoring` explains the rules.
    """
    scoring = Scoring(scale, window or 0, softcap or 0.0, sinks, is_causal)
    if uses_triton(query):
        from headrace.inference.runner.torch.kernels.attention import paged_attention

        return paged_attention(query, key_cache, value_cache, batch, scoring)
    return _attend_plainly(query, key_cache, value_cache, batch, scoring)


def _attend_plainly(query: Tensor, keys: Tensor, values: Tensor, batch: StepTensors, scoring: Scoring) -> Tensor:
    """Attend in float32, one sequence at a time."""
    attended = query.new_zeros((*query.shape[:2], values.shape[-1]))
    starts, contexts = batch.query_starts.tolist(), batch.context_lens.tolist()
    for table, context, start, stop in zip(batch.block_tables, contexts, starts, starts[1:], strict=False):
        total = context + stop - start
        rows = max(1, MAX_SCORES // (query.shape[1] * max(1, total)))
        for first in range(start, stop, rows):
            last = min(first + rows, stop)
            seen = _visible_range(context + first - start, context + last - start, total, scoring)
            attended[first:last] = _attend_rows(
                query[first:last],
                _gather(keys, table, seen),
                _gather(values, table, seen),
                range(context + first - start, context + last - start),
                seen,
                scoring,
            )
    return attended


def _visible_range(first: int, stop: int, total: int, scoring: Scoring) -> range:
    """Return the positions that any query of the positions from `first` to `stop` sees."""
    before = max(0, first - scoring.window + 1) if scoring.window else 0
    if scoring.is_causal:
        return range(before, stop)
    return range(before, min(total, stop + scoring.window - 1) if scoring.window else total)


def _gather(cache: Tensor, table: Tensor, seen: range) -> Tensor:
    """Return the cached vectors of some positions, (K, P, dim) in float32."""
    block_tokens = cache.shape[1]
    first_block = seen.start // block_tokens
    blocks = cache.index_select(0, table[first_block : -(-seen.stop // block_tokens)])
    offset = first_block * block_tokens
    return blocks.flatten(0, 1)[seen.start - offset : seen.stop - offset].transpose(0, 1).float()


def _attend_rows(query: Tensor, keys: Tensor, values: Tensor, rows: range, seen: range, scoring: Scoring) -> Tensor:
    """Attend with the queries (C, H, D) of the positions `rows` to those of `seen`; return (C, H, E)."""
    num_queries, num_heads, _ = query.shape
    grouped = query.float().view(num_queries, len(keys), -1, query.shape[2]).permute(1, 2, 0, 3)  # (K, G, C, D)
    scores = torch.matmul(grouped, keys.transpose(1, 2).unsqueeze(1)) * scoring.scale  # (K, G, C, P)
    if scoring.softcap:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    distances = torch.arange(seen.start, seen.stop) - torch.arange(rows.start, rows.stop)[:, None]  # (C, P)
    hidden = distances > 0 if scoring.is_causal else torch.zeros_like(distances, dtype=torch.bool)
    if scoring.window:
        hidden = hidden | (distances.abs() >= scoring.window)
    scores = scores.masked_fill(hidden, -torch.inf)
    if scoring.sinks is not None:
        sinks = scoring.sinks.float().view(*scores.shape[:2], 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    attended = torch.matmul(weights, values.unsqueeze(1))  # (K, G, C, E)
    return attended.permute(2, 0, 1, 3).reshape(num_queries, num_heads, -1).to(query.dtype)
