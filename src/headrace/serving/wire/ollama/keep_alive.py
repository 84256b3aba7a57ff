"""The field `keep_alive`: seconds, or a duration as Go writes it. Source: Ollama `api/types.go` (Duration)."""

import math
import re
from typing import Final

from headrace.core.errors import InvalidRequest

_DURATION: Final = re.compile(r"[-+]?(?:0|(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|ms|s|m|h))+)", re.ASCII)
_PART: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_S: Final = 10 * 365 * 86400.0
"""A longer time is forever."""


def keep_alive_s(keep_alive: float | str | None) -> float | None:
    """
    Return the idle seconds after which the model is unloaded; infinite if it is never, None if the field is not set.

    Raises `InvalidRequest`: it is not a duration.
    """
    if keep_alive is None or keep_alive == "":
        return None
    if isinstance(keep_alive, str):
        if not _DURATION.fullmatch(keep_alive):
            text = f"`keep_alive` is '{keep_alive[:80]}'; expected seconds as a number, or a duration such as"
            raise InvalidRequest(f"{text} '5m' or '-1s'.", param="keep_alive")
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(keep_alive))
        keep_alive = -1.0 if keep_alive.startswith("-") and seconds else seconds
    return math.inf if keep_alive < 0 or keep_alive > _MAX_S else float(keep_alive)


def asks_to_unload(keep_alive: float | str | None) -> bool:
    """Return whether the value is zero, which unloads the model. Raises `InvalidRequest`: it is not a duration."""
    return keep_alive_s(keep_alive) == 0
