"""The event loop renders only what takes milliseconds."""

import asyncio
import threading

from headrace.inference.engine.service.encoding_threads import INLINE_CHARS, encode_prompt
from headrace.inference.engine.service.pooled_inputs import InputTokens
from headrace.inference.models.render_limits import FULL_LIMITS, INLINE_LIMITS, RenderingTooLong, RenderLimits
from tests.waiting import WAIT_S

TOKENS = InputTokens([1])


async def test_a_short_prompt_is_encoded_at_once() -> None:
    threads = []

    def encode(*, limits: RenderLimits) -> InputTokens:
        threads.append((threading.current_thread(), limits))
        return TOKENS

    assert await encode_prompt(encode, INLINE_CHARS) == TOKENS
    assert threads == [(threading.main_thread(), INLINE_LIMITS)]


async def test_the_event_loop_turns_while_a_slow_template_renders() -> None:
    has_turned = threading.Event()
    used = []

    def encode(*, limits: RenderLimits) -> InputTokens:
        used.append(limits)
        if limits is INLINE_LIMITS:
            asyncio.get_running_loop().call_soon(has_turned.set)
            raise RenderingTooLong("too long")
        assert has_turned.wait(WAIT_S)
        return TOKENS

    assert await encode_prompt(encode, 10) == TOKENS
    assert used == [INLINE_LIMITS, FULL_LIMITS]


async def test_a_long_prompt_is_encoded_on_another_thread_only() -> None:
    threads = []

    def encode(*, limits: RenderLimits) -> InputTokens:
        threads.append((threading.current_thread() is threading.main_thread(), limits))
        return TOKENS

    assert await encode_prompt(encode, INLINE_CHARS + 1) == TOKENS
    assert threads == [(False, FULL_LIMITS)]
