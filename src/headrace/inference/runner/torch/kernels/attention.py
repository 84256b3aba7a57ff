"""
Attention over the paged KV cache, for prompt chunks and decode tokens in one launch.

The result of a query has the same bits in every batch and for every division of a prompt into chunks. Keys are taken in
tiles of one size; the tiles of a segment of fixed size, which starts at a multiple of it, are reduced in order, and so
are the segments. Tiles have the same number of rows for chunks and decode tokens. Long contexts of small batches are
spread over the GPU by segments, which `_merge_segments` reduces in the same order with the same operations; elsewhere
one program takes all segments of its queries.

Letters in shapes are those of `runner.torch.attention`.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.inference.runner.torch.batch import Scoring, StepTensors
from headrace.inference.runner.torch.kernels.tiles import compute_dtype, find_owner, first_row_of_tile, num_tiles

TILE_ROWS: Final = 16
"""Rows of a tile: queries times the query heads of one KV head; the fewest that tensor cores multiply."""
TILE_KEYS: Final = 32
SEGMENT_TOKENS: Final = 512
MIN_PROGRAMS: Final = 264
"""Fewer programs than this, two for each multiprocessor of an H100, are spread by segments."""
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
_INDICES: Final = ("query_starts", "context_lens", "block_tables", "positions")
_COUNTS: Final = ("num_sequences", "table_stride", "num_segments", "is_split")


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: StepTensors, scoring: Scoring
) -> Tensor:
    num_tokens, num_heads, key_dim = query.shape
    _, block_tokens, num_kv_heads, value_dim = value_cache.shape
    group = num_heads // num_kv_heads
    tile_rows = max(TILE_ROWS, triton.next_power_of_2(group))
    tile_queries = tile_rows // group
    tiles = num_tiles(num_tokens, len(batch.context_lens), tile_queries)
    num_segments = triton.cdiv(batch.max_context, SEGMENT_TOKENS)
    is_split = scoring.is_causal and num_segments > 1 and tiles * num_kv_heads < MIN_PROGRAMS
    output = query.new_empty((num_tokens, num_heads, value_dim))
    parts = num_segments if is_split else 0
    partial = query.new_empty((num_tokens, num_heads, parts, value_dim), dtype=torch.float32)
    maxima, sums = query.new_empty((2, num_tokens, num_heads, parts), dtype=torch.float32)
    sinks = output if scoring.sinks is None else scoring.sinks.float()  # a pointer that is not read, if there are none
    query = query if query.stride(2) == 1 else query.contiguous()
    value_block = triton.next_power_of_2(value_dim)
    _attend[(tiles, num_kv_heads, max(1, parts))](
        *(query, key_cache, value_cache, output, partial, maxima, sums, sinks),
        *(batch.query_starts, batch.context_lens, batch.block_tables),
        *(len(batch.context_lens), batch.block_tables.stride(0), num_segments, int(is_split)),
        *(query.stride(0), query.stride(1), key_cache.stride(1), key_cache.stride(2)),
        *(value_cache.stride(1), value_cache.stride(2)),
        scoring.scale * LOG2_E.value,
        scoring.softcap,
        WINDOW=scoring.window,
        IS_CAUSAL=scoring.is_causal,
        HAS_SOFTCAP=scoring.softcap > 0,
        HAS_SINKS=scoring.sinks is not None,
        NUM_HEADS=num_heads,
        GROUP=group,
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        KEY_BLOCK=triton.next_power_of_2(key_dim),
        VALUE_BLOCK=value_block,
        BLOCK_TOKENS=block_tokens,
        ROWS=tile_rows,
        KEYS=TILE_KEYS,
        SEGMENT=SEGMENT_TOKENS,
        COMPUTE=compute_dtype(query),
        num_warps=4,
        enable_fp_fusion=False,
    )
    if is_split:
        _merge_segments[(num_tokens, num_heads)](
            *(output, partial, maxima, sums, sinks, batch.positions, num_segments),
            WINDOW=scoring.window,
            HAS_SINKS=scoring.sinks is not None,
            NUM_HEADS=num_heads,
            VALUE_DIM=value_dim,
            VALUE_BLOCK=value_block,
            SEGMENT=SEGMENT_TOKENS,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return output


@triton.jit
def _merge(largest, total, attended, own_largest, own_total, own_attended):
    """Add the result of a segment to that of the segments before it; every part is relative to its largest score."""
    new_largest = tl.maximum(largest, own_largest)
    finite = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    factor = tl.exp2(largest - finite)
    own_factor = tl.exp2(own_largest - finite)
    new_total = total * factor + own_total * own_factor
    return new_largest, new_total, attended * factor[:, None] + own_attended * own_factor[:, None]


@triton.jit
def _visible(
    context, num_queries, first_query, TILE_QUERIES: tl.constexpr, WINDOW: tl.constexpr, IS_CAUSAL: tl.constexpr
):
    """Return the first position that any query of a tile sees, and the one after the last."""
    stop = context + num_queries
    if IS_CAUSAL:
        stop = tl.minimum(stop, context + first_query + TILE_QUERIES)
    elif WINDOW > 0:
        stop = tl.minimum(stop, context + first_query + TILE_QUERIES - 1 + WINDOW)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(0, context + first_query - WINDOW + 1)
    return begin, stop


@triton.jit
def _segments(begin, stop, is_split, SEGMENT: tl.constexpr):
    """Return the first and the last segment of a program; the first is beyond the last if it has none."""
    first = begin // SEGMENT
    last = (stop - 1) // SEGMENT
    own = tl.program_id(2)
    return tl.where(is_split != 0, tl.maximum(first, own), first), tl.where(is_split != 0, tl.minimum(last, own), last)


@triton.jit
def _slots(table, key_start, stop, KEYS: tl.constexpr, BLOCK_TOKENS: tl.constexpr):
    """Return the slots of a tile of keys in the cache."""
    if BLOCK_TOKENS % KEYS == 0:  # the keys of a tile share a block
        block = tl.load(table + key_start // BLOCK_TOKENS)
        slots = (block * BLOCK_TOKENS + key_start % BLOCK_TOKENS).to(tl.int64) + tl.arange(0, KEYS)
    else:
        position = key_start + tl.arange(0, KEYS)
        blocks = tl.load(table + position // BLOCK_TOKENS, mask=position < stop, other=0)
        slots = (blocks * BLOCK_TOKENS + position % BLOCK_TOKENS).to(tl.int64)
    return slots


@triton.jit
def _masked_scores(
    scores,
    distance,
    is_seen,
    softcap,
    WINDOW: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """Return scores, in units of log(2), after softcap, with -inf where a query does not see a key."""
    if HAS_SOFTCAP:
        # softcap * tanh(s / softcap), from the sigmoid
        cap = softcap * LOG2_E
        scores = cap * (2.0 / (1.0 + tl.exp2(scores / cap * (-2.0 * LOG2_E))) - 1.0)
    if IS_CAUSAL:
        is_seen = is_seen & (distance <= 0)
    if WINDOW > 0:
        is_seen = is_seen & (distance > -WINDOW) & (distance < WINDOW)
    return tl.where(is_seen, scores, float("-inf"))


@triton.jit
def _store_rows(target, rows, numbers, is_row, lane, SIZE: tl.constexpr):
    is_number = is_row[:, None] & (lane < SIZE)[None, :]
    tl.store(target + rows[:, None] * SIZE + lane[None, :], numbers.to(target.dtype.element_ty), mask=is_number)


@triton.jit
def _load_rows(source, rows, is_row, lane, SIZE: tl.constexpr):
    is_number = is_row[:, None] & (lane < SIZE)[None, :]
    return tl.load(source + rows[:, None] + lane[None, :], mask=is_number, other=0.0)


@triton.jit
def _add_tile(largest, total, attended, scores, values, COMPUTE: tl.constexpr):
    """Add a tile of keys to what its segment has attended to so far (online softmax)."""
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    finite = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # no row has seen a key yet
    weights = tl.exp2(scores - finite[:, None])
    factor = tl.exp2(largest - finite)
    total = total * factor + tl.sum(weights, 1)
    attended = tl.dot(weights.to(COMPUTE), values, attended * factor[:, None], input_precision="ieee")
    return new_largest, total, attended


@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def _attend(
    query,
    key_cache,
    value_cache,
    output,
    partial,
    maxima,
    sums,
    sinks,
    query_starts,
    context_lens,
    block_tables,
    num_sequences,
    table_stride,
    num_segments,
    is_split,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    scale,
    softcap,
    WINDOW: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SEGMENT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Attend with a tile of queries of one KV head: to one segment if `is_split`, else to all of its sequence."""
    TILE_QUERIES: tl.constexpr = ROWS // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = find_owner(query_starts, tile, num_sequences, TILE_QUERIES)
    start = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - start
    first_query = first_row_of_tile(start, tile, sequence, TILE_QUERIES)
    if first_query >= num_queries:
        return
    context = tl.load(context_lens + sequence)
    begin, stop = _visible(context, num_queries, first_query, TILE_QUERIES, WINDOW, IS_CAUSAL)
    first_segment, last_segment = _segments(begin, stop, is_split, SEGMENT)
    if first_segment > last_segment:
        return

    row = tl.arange(0, ROWS)
    query_index = first_query + row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_row = (row < TILE_QUERIES * GROUP) & (query_index < num_queries)
    token = (start + query_index).to(tl.int64)
    position = context + query_index
    key_lane = tl.arange(0, KEY_BLOCK)
    value_lane = tl.arange(0, VALUE_BLOCK)
    query_rows = token * query_stride + head * query_head_stride
    queries = _load_rows(query, query_rows, is_row, key_lane, KEY_DIM).to(COMPUTE)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    attended = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
    if HAS_SINKS:
        if is_split == 0:
            largest = tl.load(sinks + head, mask=is_row, other=0.0) * LOG2_E
            total = total + 1.0
    table = block_tables + sequence.to(tl.int64) * table_stride
    for segment in range(first_segment, last_segment + 1):
        own_largest = tl.full([ROWS], float("-inf"), tl.float32)
        own_total = tl.zeros([ROWS], tl.float32)
        own_attended = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
        first_key = tl.maximum(segment * SEGMENT, begin // KEYS * KEYS)
        for key_start in range(first_key, tl.minimum((segment + 1) * SEGMENT, stop), KEYS):
            key_position = key_start + tl.arange(0, KEYS)
            is_key = key_position < stop
            slots = _slots(table, key_start, stop, KEYS, BLOCK_TOKENS)
            keys = tl.load(
                key_cache + (slots * key_stride + kv_head * key_head_stride)[None, :] + key_lane[:, None],
                mask=is_key[None, :] & (key_lane < KEY_DIM)[:, None],
                other=0.0,
            ).to(COMPUTE)
            scores = tl.dot(queries, keys, input_precision="ieee") * scale
            distance = key_position[None, :] - position[:, None]
            scores = _masked_scores(
                *(scores, distance, is_key[None, :] & is_row[:, None], softcap),
                *(WINDOW, IS_CAUSAL, HAS_SOFTCAP),
            )
            value_rows = slots * value_stride + kv_head * value_head_stride
            values = _load_rows(value_cache, value_rows, is_key, value_lane, VALUE_DIM).to(COMPUTE)
            own_largest, own_total, own_attended = _add_tile(
                own_largest, own_total, own_attended, scores, values, COMPUTE
            )
        largest, total, attended = _merge(largest, total, attended, own_largest, own_total, own_attended)

    place = token * NUM_HEADS + head
    if is_split == 0:
        _store_rows(
            output, place, attended / tl.where(total == 0.0, 1.0, total)[:, None], is_row, value_lane, VALUE_DIM
        )
    else:
        part = place * num_segments + first_segment
        _store_rows(partial, part, attended, is_row, value_lane, VALUE_DIM)
        tl.store(maxima + part, largest, mask=is_row)
        tl.store(sums + part, total, mask=is_row)


@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def _merge_segments(
    output,
    partial,
    maxima,
    sums,
    sinks,
    positions,
    num_segments,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    SEGMENT: tl.constexpr,
):
    """Reduce the segments that a query head of a token sees, in order."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    position = tl.load(positions + token)
    first_segment = 0
    if WINDOW > 0:
        first_segment = tl.maximum(0, position - WINDOW + 1) // SEGMENT
    row = tl.arange(0, 1)
    lane = tl.arange(0, VALUE_BLOCK)
    largest = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    attended = tl.zeros([1, VALUE_BLOCK], tl.float32)
    if HAS_SINKS:
        largest = tl.load(sinks + head + row) * LOG2_E
        total = total + 1.0
    place = token * NUM_HEADS + head
    for segment in range(first_segment, position // SEGMENT + 1):
        part = place * num_segments + segment + row
        own_attended = tl.load(
            partial + part[:, None] * VALUE_DIM + lane[None, :], mask=(lane < VALUE_DIM)[None, :], other=0.0
        )
        own_largest = tl.load(maxima + part)
        own_total = tl.load(sums + part)
        largest, total, attended = _merge(largest, total, attended, own_largest, own_total, own_attended)
    attended = attended / tl.where(total == 0.0, 1.0, total)[:, None]
    places = output + (place + row)[:, None] * VALUE_DIM + lane[None, :]
    tl.store(places, attended.to(output.dtype.element_ty), mask=(lane < VALUE_DIM)[None, :])
