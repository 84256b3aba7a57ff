"""The header in which a replica with several containers says which of them have answered, and in what time."""

from collections.abc import Sequence
from math import inf
from typing import Final

HEADER: Final = "x-headrace-containers"
"""Between a worker and the gateway only: `preprocess=0.0123,model`, the last one without its time."""
TARGET_HEADER: Final = "x-amzn-sagemaker-target-container-hostname"


def write_answered(earlier: Sequence[tuple[str, float]], last: str) -> str:
    """Return the header for a response of the container `last`, after those of `earlier` with their seconds."""
    return ",".join([*(f"{name}={seconds:.6f}" for name, seconds in earlier), last])


def read_answered(text: str | None) -> list[tuple[str, float]]:
    """Return the containers that have answered with their seconds, the last with 0; empty without a valid header."""
    found = []
    for part in (text or "").split(","):
        name, _, seconds = part.partition("=")
        try:
            found.append((name, float(seconds or 0.0)))
        except ValueError:
            return []
    is_valid = all(name and 0.0 <= seconds < inf for name, seconds in found)
    return found if is_valid else []
