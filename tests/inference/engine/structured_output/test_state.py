"""Texts that must come are divided into the longest tokens, and no other text is lost."""

import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.generation import Grammar
from headrace.inference.engine.structured_output.compiler import GrammarCompiler
from headrace.inference.engine.structured_output.state import GrammarState
from headrace.inference.models.tokenizer import Tokenizer, byte_characters

WORDS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=5, unique=True)
LONGER = ("aa", "ab", "abb", "ba", "baab", "abab")


def tokenizer_with(*longer: str) -> Tokenizer:
    """A token for each byte, and further ones for texts; the last token is `<eos>`."""
    vocab = byte_characters() | {text: 256 + index for index, text in enumerate(longer)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(backend, vocab_size=len(vocab) + 1, eos_token_ids=[len(vocab)])


async def begin(tokenizer: Tokenizer, lark: str) -> GrammarState:
    compiler = GrammarCompiler(tokenizer, vocab_size=tokenizer.vocab_size)
    try:
        return await compiler.compile(Grammar("lark", lark))
    finally:
        compiler.close()


def allowed(tokenizer: Tokenizer, state: GrammarState) -> set[str]:
    words = state.mask()
    ids = [index for index in range(tokenizer.vocab_size) if words[index // 32] >> (index % 32) & 1]
    return {"<eos>" if index in tokenizer.eos_token_ids else tokenizer.token_bytes(index).decode() for index in ids}


def texts_of(tokenizer: Tokenizer, state: GrammarState, text: str = "") -> set[str]:
    """Return all answers that a grammar and the tokens allow."""
    found: set[str] = set()
    for token in allowed(tokenizer, state):
        if token == "<eos>":
            found.add(text)
            continue
        (token_id,) = [
            index for index in range(tokenizer.vocab_size - 1) if tokenizer.token_bytes(index) == token.encode()
        ]
        after = state.fork()
        after.accept(token_id)
        found |= {text + token} if after.is_complete else texts_of(tokenizer, after, text + token)
    return found


async def test_a_text_that_must_come_has_one_token_at_each_place() -> None:
    tokenizer = tokenizer_with("ye", "yes", "yes!")
    cases = {
        'start: "yes" ("." | "?")': {"yes"},
        'start: "yes" ("!" | "?")': {"y", "ye", "yes", "yes!"},
        'start: "ye" ("s" | "a")': {"y", "ye", "yes"},  # no token is longer than "yea", which may follow
        'start: "n" "o"': {"n"},
        "start: /y+/ /y/": {"y"},  # llguidance's own search has no end
    }
    for lark, expected in cases.items():
        assert allowed(tokenizer, await begin(tokenizer, lark)) == expected, lark


@given(words=WORDS, longer=st.sets(st.sampled_from(LONGER)))
async def test_each_text_of_a_grammar_can_still_be_written(words: list[str], longer: set[str]) -> None:
    tokenizer = tokenizer_with(*sorted(longer))
    lark = "start: " + " | ".join(f'"{word}"' for word in words)
    assert texts_of(tokenizer, await begin(tokenizer, lark)) == set(words)
