"""
Decide which loaded models leave memory for another one. Pure: the caller measures memory and time.

The least recently used models leave first, idle ones before busy ones. A busy model finishes its requests and takes no
new ones, so that a model that is always busy cannot keep others waiting.
"""

from collections.abc import Sequence
from dataclasses import dataclass


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
    is_fixed: bool = False
    """It stays: it is being loaded, or pinned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The room for a model: it can be loaded now, or after others have left."""

    is_free: bool
    unload: tuple[str, ...] = ()
    """Models to unload, in addition to those that are leaving."""


def make_room(models: Sequence[ModelUse], need_bytes: int, limit_bytes: int) -> Room:
    """
    Return whether `need_bytes` fit beside the models in memory, and the models to unload for them.

    With no other model in memory there is room: whether the model fits is known when it has been measured.
    """
    staying = [model for model in models if not model.is_leaving]
    free_bytes = limit_bytes - sum(model.memory_bytes for model in staying)
    leaving_bytes = sum(model.memory_bytes for model in models if model.is_leaving)
    if not models or need_bytes <= free_bytes - leaving_bytes:
        return Room(is_free=True)
    unload = []
    for model in sorted(staying, key=lambda model: (model.is_busy, model.last_used_s)):
        if need_bytes <= free_bytes:
            break
        if not model.is_fixed:
            free_bytes += model.memory_bytes
            unload.append(model.name)
    return Room(is_free=False, unload=tuple(unload))
