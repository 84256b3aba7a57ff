"""
The number of state slots that a runner has memory for, for models with state layers.

A state is as large as the KV cache of 15 (LFM2) to 7,000 tokens (Granite 4 H). Each running sequence needs a slot; the
others keep checkpoints of prefixes (`engine.core.states`).
"""

from dataclasses import dataclass
from typing import Final

_LEAST_CHECKPOINTS: Final = 2
_CHECKPOINT_SHARE: Final = 0.25
"""
Bytes of checkpoints for each byte of KV cache. A checkpoint spares a prompt about as many tokens as its bytes hold of
KV, and is of no use without the KV before it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSlots:
    """The slots of a runner."""

    slot_bytes: int = 0
    """The state of one sequence and the inputs of its draft tokens, all layers; 0 for models without state layers."""
    max_num_seqs: int = 0
    """Sequences that run at the same time; 0 for models without state layers."""
    num_slots: int = 0
    is_limited: bool = False
    """True if fewer sequences run than were requested."""

    @property
    def total_bytes(self) -> int:
        return self.num_slots * self.slot_bytes


def live_slots(slot_bytes: int, *, max_num_seqs: int, free_bytes: int, kv_cache_bytes: int) -> int:
    """Return how many sequences run: at most as many as half of the memory holds that the smallest KV cache leaves."""
    return max(1, min(max_num_seqs, (free_bytes - kv_cache_bytes) // 2 // slot_bytes))


def kv_share(slot_bytes: int, *, max_num_seqs: int, free_bytes: int) -> int:
    """Return the bytes that the live slots and all checkpoints leave for the KV cache."""
    left_bytes = free_bytes - (max_num_seqs + _LEAST_CHECKPOINTS) * slot_bytes
    return int(left_bytes / (1 + _CHECKPOINT_SHARE))


def all_slots(
    slot_bytes: int, *, max_num_seqs: int, requested_seqs: int, num_blocks: int, kv_cache_bytes: int, free_bytes: int
) -> StateSlots:
    """
    Return the slots beside a KV cache: at most one checkpoint for each of its blocks, and at least two.

    A network without attention has no KV cache: it keeps a checkpoint for each sequence that may run.
    """
    left_bytes = free_bytes - kv_cache_bytes - max_num_seqs * slot_bytes
    share_bytes = int(kv_cache_bytes * _CHECKPOINT_SHARE) if kv_cache_bytes else max_num_seqs * slot_bytes
    checkpoints = max(_LEAST_CHECKPOINTS, min(num_blocks, min(share_bytes, left_bytes) // slot_bytes))
    return StateSlots(
        slot_bytes=slot_bytes,
        max_num_seqs=max_num_seqs,
        num_slots=max_num_seqs + checkpoints,
        is_limited=max_num_seqs < requested_seqs,
    )
