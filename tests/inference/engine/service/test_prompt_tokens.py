"""The event loop renders only what takes milliseconds; long inputs are truncated on the side that a request names."""

import asyncio
import threading

import pytest
import tokenizers
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from headrace.inference.engine.service.prompt_tokens import (
    INLINE_CHARS,
    InputTokens,
    Side,
    cut,
    encode_input,
    encode_prompt,
)
from headrace.inference.models.pretokenizers import PRE_TOKENIZERS
from headrace.inference.models.render_limits import FULL_LIMITS, INLINE_LIMITS, RenderingTooLong, RenderLimits
from headrace.inference.models.tokenizer import Tokenizer
from tests.inference.engine.support import VOCAB_SIZE, byte_tokenizer
from tests.waiting import WAIT_S

TOKENS = InputTokens([1])


async def test_a_short_prompt_is_encoded_at_once() -> None:
    threads = []

    def encode(limits: RenderLimits) -> InputTokens:
        threads.append((threading.current_thread(), limits))
        return TOKENS

    assert await encode_prompt(encode, byte_tokenizer(), INLINE_CHARS) == TOKENS
    assert threads == [(threading.main_thread(), INLINE_LIMITS)]


async def test_the_event_loop_turns_while_a_slow_template_renders() -> None:
    has_turned = threading.Event()
    used = []

    def encode(limits: RenderLimits) -> InputTokens:
        used.append(limits)
        if limits is INLINE_LIMITS:
            asyncio.get_running_loop().call_soon(has_turned.set)
            raise RenderingTooLong("too long")
        assert has_turned.wait(WAIT_S)
        return TOKENS

    assert await encode_prompt(encode, byte_tokenizer(), 10) == TOKENS
    assert used == [INLINE_LIMITS, FULL_LIMITS]


async def test_a_long_prompt_is_encoded_on_another_thread_only() -> None:
    threads = []

    def encode(limits: RenderLimits) -> InputTokens:
        threads.append((threading.current_thread() is threading.main_thread(), limits))
        return TOKENS

    assert await encode_prompt(encode, byte_tokenizer(), INLINE_CHARS + 1) == TOKENS
    assert threads == [(False, FULL_LIMITS)]


@pytest.mark.parametrize(
    ("regex", "is_inline"),
    [(PRE_TOKENIZERS["qwen2"].patterns[0], True), (r"(?:a|a|a|a){11}[c-d]", False)],  # 8 s for 60 characters
)
async def test_a_vocabulary_whose_regex_may_take_long_is_used_on_another_thread_only(regex, is_inline) -> None:
    backend = tokenizers.Tokenizer.from_str(byte_tokenizer()._backend.to_str())
    backend.pre_tokenizer = Sequence(
        [Split(Regex(regex), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer = Tokenizer(backend, vocab_size=VOCAB_SIZE)
    threads = []

    def encode(_limits: RenderLimits) -> InputTokens:
        threads.append(threading.current_thread() is threading.main_thread())
        return TOKENS

    assert await encode_prompt(encode, tokenizer, 1) == TOKENS
    assert threads == [is_inline]
    assert tokenizer.encode("ab") == byte_tokenizer().encode("ab")


@pytest.mark.parametrize(
    ("most", "side", "expected"),
    [
        (2, "right", (1, 2)),
        (2, "left", (2, 3)),
        (0, "right", ()),
        (0, "left", ()),
        (3, "left", (1, 2, 3)),
        (2, None, (1, 2, 3)),
    ],
)
def test_tokens_are_cut_on_one_side(most: int, side: Side | None, expected: tuple[int, ...]) -> None:
    assert cut((1, 2, 3), most, side) == expected


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_document_without_room_beside_its_query_is_left_out(side: Side) -> None:
    tokens = encode_input(byte_tokenizer(), "query", "document", "{query}: {document}.", most=8, side=side)
    assert bytes(tokens.ids) == b"query: ."
