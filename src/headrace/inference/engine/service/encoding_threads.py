"""The thread on which a prompt is rendered and tokenised: the event loop only if it takes milliseconds."""

import asyncio
from contextlib import suppress
from typing import Final, Protocol

from headrace.inference.engine.service.pooled_inputs import InputTokens
from headrace.inference.models.render_limits import FULL_LIMITS, INLINE_LIMITS, RenderingTooLong, RenderLimits

INLINE_CHARS: Final = 8192
"""Longer prompts are rendered and tokenised on a worker thread."""


class Encode(Protocol):
    """Renders and tokenises a prompt."""

    def __call__(self, *, limits: RenderLimits) -> InputTokens: ...


async def encode_prompt(encode: Encode, num_characters: int) -> InputTokens:
    """Render and tokenise a short prompt at once, unless its template takes long; a long one on a worker thread."""
    if num_characters <= INLINE_CHARS:
        with suppress(RenderingTooLong):
            return encode(limits=INLINE_LIMITS)
    return await asyncio.to_thread(encode, limits=FULL_LIMITS)
