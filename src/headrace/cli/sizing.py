"""The sums of `headrace fit`: what each format of a model needs, what fits, what to choose."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.core.errors import InsufficientMemory
from headrace.runner.memory import MemoryPlan

FORMATS = (("bf16", "bf16"), ("bf16", "int8"), ("w8a8", "bf16"), ("w8a8", "int8"), ("w4a8", "int8"))
"""Weights and KV cache: those worth comparing, best quality first."""
SHORTEST_CONTEXT = 512

Plan = Callable[..., MemoryPlan]
"""`plan(dtype=…, kv_dtype=…, max_model_len=…, max_num_seqs=…)`; raises `InsufficientMemory`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFit:
    """One format on this machine."""

    dtype: str
    kv_dtype: str
    plan: MemoryPlan | None
    """As `headrace serve` would make it; None where it does not fit."""
    room_tokens: int
    """Tokens of KV cache that fit at most."""
    refusal: str = ""
    """Why it does not fit."""

    def sequences_of(self, num_tokens: int) -> int:
        """Sequences of that length that fit at once."""
        return self.room_tokens // num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to start the server with; None: nothing fits."""

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
    The default format if it fits, else the best that does, else the longest context that fits in the smallest.

    Args:
        plan: as for `fit_formats`.
        fits: what came of it.
        auto: weights and KV cache that `--dtype auto` takes for this checkpoint.
        max_model_len: the context that is wanted.
        max_num_seqs: sequences at once.
    """
    fitting = [(fit.dtype, fit.kv_dtype) for fit in fits if fit.plan is not None]
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
