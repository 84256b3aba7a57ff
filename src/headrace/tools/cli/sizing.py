"""The calculations of `headrace fit`: memory of each format, what fits, and a recommendation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.core.errors import InsufficientMemory
from headrace.inference.runner.memory import MemoryPlan

FORMATS = (
    ("bf16", "bf16"),
    ("bf16", "int8"),
    ("w8a16", "bf16"),
    ("w8a8", "int8"),
    ("w4a16", "bf16"),
    ("w4a8", "int8"),
)
"""Formats of weights and KV cache that are worth comparing, best quality first."""
SHORTEST_CONTEXT = 512

Plan = Callable[..., MemoryPlan]
"""`plan(dtype=…, kv_dtype=…, max_model_len=…, max_num_seqs=…)`; raises `InsufficientMemory`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFit:
    """The memory of a format, and what fits on the machine."""

    dtype: str
    kv_dtype: str
    plan: MemoryPlan | None
    """The plan that `headrace serve` would make, or None if it does not fit."""
    room_tokens: int
    """Most tokens of KV cache that fit."""
    refusal: str = ""
    """The reason why it does not fit."""

    def sequences_of(self, num_tokens: int) -> int:
        """Return the number of sequences of that length that fit concurrently."""
        return self.room_tokens // num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The recommended format and context length for the server."""

    dtype: str
    kv_dtype: str
    max_model_len: int


def fit_formats(plan: Plan, *, max_model_len: int, max_num_seqs: int, available_bytes: int) -> list[FormatFit]:
    """Plan every format."""
    return [_fit(plan, dtype, kv_dtype, max_model_len, max_num_seqs, available_bytes) for dtype, kv_dtype in FORMATS]


def _fit(
    plan: Plan, dtype: str, kv_dtype: str, max_model_len: int, max_num_seqs: int, available_bytes: int
) -> FormatFit:
    try:
        served = plan(dtype=dtype, kv_dtype=kv_dtype, max_model_len=max_model_len, max_num_seqs=max_num_seqs)
    except InsufficientMemory as error:
        return FormatFit(dtype=dtype, kv_dtype=kv_dtype, plan=None, room_tokens=0, refusal=error.message)
    per_sequence = served.kv_bytes_per_token * max_model_len
    enough = max(max_num_seqs, available_bytes // per_sequence + 1)
    most = plan(dtype=dtype, kv_dtype=kv_dtype, max_model_len=max_model_len, max_num_seqs=enough)
    room_tokens = most.kv_cache_bytes // most.kv_bytes_per_token
    return FormatFit(dtype=dtype, kv_dtype=kv_dtype, plan=served, room_tokens=room_tokens)


def advise(
    plan: Plan, fits: Sequence[FormatFit], *, auto: tuple[str, str], max_model_len: int, max_num_seqs: int
) -> Advice | None:
    """
    Recommend the default format if it fits, else the best that fits, else the smallest with the longest context.

    Formats whose weights have to stay on disk in part count only if no other fits.

    Args:
        plan: as for `fit_formats`.
        fits: the result of `fit_formats`.
        auto: the formats of weights and KV cache that `--dtype auto` selects for this checkpoint.
        max_model_len: the requested context length.
        max_num_seqs: the number of concurrent sequences.
    """
    planned = [fit for fit in fits if fit.plan is not None]
    in_memory = [fit for fit in planned if fit.plan is not None and fit.plan.mapping != "required"]
    fitting = [(fit.dtype, fit.kv_dtype) for fit in in_memory or planned]
    if fitting:
        dtype, kv_dtype = auto if auto in fitting else fitting[0]
        return Advice(dtype=dtype, kv_dtype=kv_dtype, max_model_len=max_model_len)
    dtype, kv_dtype = FORMATS[-1]
    while (max_model_len := max_model_len // 2) >= SHORTEST_CONTEXT:
        try:
            plan(dtype=dtype, kv_dtype=kv_dtype, max_model_len=max_model_len, max_num_seqs=max_num_seqs)
        except InsufficientMemory:
            continue
        return Advice(dtype=dtype, kv_dtype=kv_dtype, max_model_len=max_model_len)
    return None
