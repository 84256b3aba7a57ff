"""Tokens that a request allows or forbids, on the fake runner with one token a byte."""

from dataclasses import replace

import pytest
import tokenizers

from headrace.core.errors import InvalidRequest
from headrace.core.generation import FinishReason, Grammar
from headrace.inference.models.tokenizer import Tokenizer, byte_characters
from headrace.testing.fake_runner import follow
from tests.inference.engine.support import ask, ask_all, byte_tokenizer, make_engine, request, running


def wanting(text: str):
    """An engine whose model wants to answer this."""
    return make_engine(script=follow({(): byte_tokenizer().encode(text, add_special_tokens=False)}))


def asked(**sampling):
    wanted = request("?", max_new_tokens=40)
    return replace(wanted, sampling=replace(wanted.sampling, **sampling))


async def test_only_the_allowed_tokens_are_in_the_answer() -> None:
    allowed = tuple(byte_tokenizer().encode("abc", add_special_tokens=False))
    async with running(wanting("xaybzc")) as engine:
        for answer in await ask_all(engine, asked(allowed_token_ids=allowed, n=2, temperature=1.0, seed=1)):
            assert set(answer.text) <= set("abc")
            assert answer.finish.reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("wanted", "start"), [("a cat sat", "a ca"), ("cat", "ca"), ("a category", "a ca"), ("a Cat", "a Cat")]
)
async def test_a_bad_word_is_not_finished(wanted, start) -> None:
    async with running(wanting(wanted)) as engine:
        answer = await ask(engine, asked(bad_words=("cat", "dog")))
    assert answer.text.startswith(start)
    assert "cat" not in answer.text


async def test_bad_words_of_all_lengths_are_forbidden_together() -> None:
    async with running(wanting("dog cab")) as engine:
        answer = await ask(engine, asked(bad_words=("c", "do", "og", "ogle")))
    assert answer.text.startswith("d")
    assert not {"c", "do", "og"} & {answer.text[start:end] for start in range(40) for end in range(start, 41)}


async def test_bad_words_and_a_grammar_hold_together() -> None:
    digits = Grammar("regex", "[12]{3}")
    async with running(wanting("111")) as engine:
        answer = await ask(engine, asked(bad_words=("11",), grammar=digits))
    assert (answer.text, answer.finish.reason) == ("121", FinishReason.EOS)


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"allowed_token_ids": (999,)}, "allowed_token_ids"),
        ({"bad_words": (" ",)}, "bad_words"),
        ({"bad_words": ("x" * 4097,)}, "bad_words"),
    ],
)
async def test_rules_that_are_out_of_range_are_refused(sampling, param) -> None:
    async with running(wanting("a")) as engine:
        with pytest.raises(InvalidRequest) as caught:
            await ask(engine, asked(**sampling))
    assert caught.value.param == param


@pytest.mark.parametrize("word", ["é", "aé", "é b"])
async def test_a_bad_word_that_the_vocabulary_cannot_spell_forbids_nothing(word) -> None:
    letters = {character: byte for character, byte in byte_characters().items() if byte < 128}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = Tokenizer(backend, vocab_size=128)
    script = follow({(): tokenizer.encode("a b c")})
    async with running(make_engine(tokenizer=tokenizer, script=script)) as engine:
        answer = await ask(engine, asked(bad_words=(word,)))
    assert answer.text.startswith("a b c")
