"""Limits on the work of rendering a chat; separate from `chat_budget`, which imports Jinja."""

from dataclasses import dataclass
from typing import Final

from headrace.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    """The work that one rendering may take."""

    max_steps: int
    max_seconds: float
    max_characters: int
    """Longest rendered prompt."""
    max_bytes: int = 512 * 1024 * 1024
    """Size of all texts and collections that are built, whether or not they are still in use."""


INLINE_LIMITS: Final = RenderLimits(max_steps=5_000, max_seconds=0.04, max_characters=32 * 1024)
"""Limits for rendering on the event loop."""
FULL_LIMITS: Final = RenderLimits(max_steps=5_000_000, max_seconds=10.0, max_characters=64 * 1024 * 1024)
"""Limits for rendering on a worker thread."""


class RenderingTooLong(InvalidRequest):
    """Rendering a chat takes more work than the limits allow."""


def too_long(limit: str) -> RenderingTooLong:
    return RenderingTooLong(
        f"The chat template needs more than {limit} for these messages. Send fewer, or correct the template.",
        param="messages",
    )
