"""
Decide which loaded models leave memory for another one. Pure: the caller measures memory and time.

The least recently used models leave first, idle ones before busy ones. A busy model finishes its requests and takes no
new ones, so that a model that is always busy cannot keep others waiting.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

_PROCESS_BYTES: Final = 96 << 20
"""Estimate for a process without its model, before the first measurement."""
_FIRST_SHARE: Final = 4
"""Part of the limit that is reserved for a model while none has been measured."""
_UNPACKED: Final = 2.0
"""Estimated size of a model in memory, relative to its files: 2.4 with its process (Gemma 3 270M in Q4_K_M)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """A model in memory, as the decision sees it."""

    name: str
    memory_bytes: int
    """Measured; an estimate while it is being loaded."""
    last_used_s: float
    is_busy: bool = False
    """It has requests in flight."""
    is_leaving: bool = False
    """It is being unloaded."""
    is_loading: bool = False
    is_pinned: bool = False
    """It stays until a client unloads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The room for a model: it can be loaded now, after others have left, or never."""

    is_free: bool
    unload: tuple[str, ...] = ()
    """Models to unload, in addition to those that are leaving."""
    is_possible: bool = True
    """False: pinned models leave no room, whatever else is unloaded."""


def make_room(models: Sequence[ModelUse], need_bytes: int, limit_bytes: int, *, max_models: int | None = None) -> Room:
    """
    Return whether `need_bytes` fit beside the models in memory, and the models to unload for them.

    With no other model in memory there is room: whether the model fits is known when it has been measured.
    `max_models` limits the number of models in memory, too.
    """
    staying = [model for model in models if not model.is_leaving]
    pinned = [model for model in staying if model.is_pinned]
    most = len(models) + 1 if max_models is None else max_models

    def fits_beside(others: Sequence[ModelUse]) -> bool:
        return len(others) < most and need_bytes <= limit_bytes - sum(other.memory_bytes for other in others)

    if not models or fits_beside(models):
        return Room(is_free=True)
    unload = []
    for model in sorted(staying, key=lambda model: (model.is_busy, model.last_used_s)):
        if fits_beside(staying):
            break
        if not model.is_loading and not model.is_pinned:
            staying.remove(model)
            unload.append(model.name)
    return Room(is_free=False, unload=tuple(unload), is_possible=not pinned or fits_beside(pinned))


def load_bytes(size_bytes: int, peak_bytes: int, most_bytes: int) -> int:
    """Return the memory to reserve for a model that was measured, or 0: its peak during a load, if there is so much."""
    return size_bytes and max(size_bytes, min(peak_bytes, most_bytes))


def estimate_bytes(file_bytes: int, measured: Collection[int], *, limit_bytes: int, pinned_bytes: int) -> int:
    """
    Return the memory to reserve for a model that was never measured: as the others take, or by the size of its files.

    The guess does not keep it from being loaded alone beside the pinned models, and then measured.
    """
    typical = sum(measured) // len(measured) if measured else limit_bytes // _FIRST_SHARE
    guess = max(typical, round(file_bytes * _UNPACKED) + _PROCESS_BYTES)
    return max(file_bytes, min(guess, limit_bytes - pinned_bytes))
