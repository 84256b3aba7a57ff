"""Objects of constrained JSON answers never repeat a name, in any tokenisation."""

import asyncio
import json
import random
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.generation import Grammar
from headrace.inference.engine.structured_output.compiler import GrammarCompiler
from headrace.inference.engine.structured_output.json_names import JsonPlace, NameIndex, follow
from headrace.inference.engine.structured_output.source import grammar_source, has_maps
from headrace.inference.engine.structured_output.state import GrammarState
from headrace.inference.models.tokenizer import Tokenizer, byte_characters
from tests.schemas import SCHEMAS

PIECES = [
    '":',
    '", "',
    '{"',
    '"}',
    "ab",
    "aba",
    '"a"',
    '{"a":',
    '\\"',
    '"a":1,"b":2',
    '":1,"a":',
    '"a":{"a":',
    ' "',
    "20",
]
NAMES = st.text(alphabet='ab\\"20é', max_size=4)
VALUES = st.recursive(
    st.none() | st.integers(0, 30) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
EOS = 256


def make_tokenizer() -> Tokenizer:
    """One token a byte, `<eos>`, and pieces that open, close or hold names."""
    spelled = {byte: character for character, byte in byte_characters().items()}
    vocab = {**byte_characters(), "<eos>": EOS}
    for number, piece in enumerate(PIECES, EOS + 1):
        vocab["".join(spelled[byte] for byte in piece.encode())] = number
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(backend, vocab_size=len(vocab), bos_token_id=None, eos_token_ids=[EOS])


TOKENIZER = make_tokenizer()


def compiled(grammar: Grammar) -> GrammarState:
    compiler = GrammarCompiler(TOKENIZER, vocab_size=TOKENIZER.vocab_size)
    state = asyncio.run(compiler.compile(grammar))
    compiler.close()
    return state


def allowed(state: GrammarState) -> list[int]:
    bits = np.unpackbits(state.mask().view(np.uint8), bitorder="little")
    return [index for index in np.flatnonzero(bits).tolist() if index < TOKENIZER.vocab_size]


def has_repeats(text: str) -> bool:
    repeated = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        repeated.append(len(dict(pairs)) < len(pairs))

    json.loads(text, object_pairs_hook=note)
    return any(repeated)


def write(state: GrammarState, choose: random.Random, *, num_tokens: int) -> tuple[str, bool]:
    """Draw an answer that likes to repeat itself; return it, and whether it came to its end."""
    written = b""
    for _ in range(num_tokens):
        options = allowed(state)
        assert options
        if EOS in options:
            return written.decode(errors="replace"), True
        liked = [token for token in options if TOKENIZER.token_bytes(token) in LIKED]
        token = choose.choice(liked or options)
        written += TOKENIZER.token_bytes(token)
        state.accept(token)
    return written.decode(errors="replace"), False


LIKED = {piece.encode() for piece in (*PIECES, *'ab",:1{}')}
FREE = compiled(Grammar("json_object"))
YEARS = {"type": "object", "patternProperties": {"^[0-9]{2}$": {"const": 1}}, "additionalProperties": False}


@pytest.mark.parametrize("grammar", [Grammar("json_object"), Grammar("json_schema", json.dumps(YEARS))])
def test_answers_never_repeat_names_even_if_the_model_prefers_to(grammar: Grammar) -> None:
    start = compiled(grammar)
    texts = [write(start.fork(), random.Random(seed), num_tokens=60) for seed in range(60)]
    ended = [text for text, has_ended in texts if has_ended]
    assert sum(text.count(":") > 1 for text in ended) > 3
    assert not any(has_repeats(text) for text in ended), ended


@settings(max_examples=60, deadline=None)
@given(value=st.dictionaries(NAMES, VALUES, max_size=4), seed=st.integers(0, 9))
def test_json_without_repeats_stays_possible_in_every_tokenization(value: dict[str, Any], seed: int) -> None:
    state, rest = FREE.fork(), json.dumps(value, ensure_ascii=False).encode()
    choose = random.Random(seed)
    while rest:
        fitting = [token for token in range(TOKENIZER.vocab_size) if token != EOS]
        fitting = [token for token in fitting if rest.startswith(TOKENIZER.token_bytes(token))]
        token = choose.choice(fitting)
        assert token in allowed(state), (rest, TOKENIZER.token_bytes(token))
        state.accept(token)
        rest = rest[len(TOKENIZER.token_bytes(token)) :]
    assert state.is_complete or EOS in allowed(state)


@settings(max_examples=100, deadline=None)
@given(value=VALUES, data=st.data())
def test_a_place_does_not_depend_on_how_the_bytes_are_split(value: object, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=False).encode()
    cut = data.draw(st.integers(0, len(text)))
    assert follow(follow(JsonPlace(), text[:cut]), text[cut:]) == follow(JsonPlace(), text)
    assert follow(JsonPlace(), text).num_repeats == 0


def test_repeats_count_only_within_one_object() -> None:
    assert follow(JsonPlace(), b'{"a":{"a":["a",{"a":1}]},"b":"a"').num_repeats == 0
    assert follow(JsonPlace(), b'{"a\\\\":{"b":1,"b":2},"a\\\\":3').num_repeats == 2


def test_forks_are_independent() -> None:
    first = FREE.fork()
    for byte in b'{"a":1,':
        first.accept(byte)
    second = first.fork()
    for byte in b'"b":1,"b':
        second.accept(byte)
    for byte in b'"b':
        first.accept(byte)
    assert ord('"') in allowed(first)
    assert ord('"') not in allowed(second)


def test_a_repeated_name_is_allowed_where_nothing_else_is() -> None:
    schema = {"patternProperties": {"^a$": {"const": 1}}, "additionalProperties": False, "minProperties": 2}
    state = compiled(Grammar("json_schema", json.dumps(schema)))
    for byte in b'{"a":1,"a':
        state.accept(byte)
    assert {TOKENIZER.token_bytes(token) for token in allowed(state)} == {b'"', b'":', b'":1,"a":'}


def test_the_index_finds_tokens_that_continue_after_the_quote() -> None:
    index = NameIndex([b"", b'b"', b'b":', b"b", b'"', b'bc"', b'b\\"'])
    place = follow(JsonPlace(), b'{"ab":1,"a')
    assert sorted(index.repeating(place, np.full(1, 0xFFFFFFFF, np.uint32))) == [1, 2]
    assert list(index.spelling(place)) == [3]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (SCHEMAS["user"], False),
        (SCHEMAS["tree"], False),
        ({"properties": {}}, False),
        ({"type": "object", "required": ["type"]}, False),
        ({"enum": [{"type": 1}]}, False),
        (SCHEMAS["labels"], True),
        (SCHEMAS["environment"], True),
        ({"type": "object"}, True),
        ({"properties": {"a": True}}, True),
        ({"properties": {"a": {}}, "unevaluatedProperties": True, "allOf": [{"type": "object"}]}, True),
    ],
)
def test_only_schemas_with_maps_need_names(schema: dict[str, Any], *, expected: bool) -> None:
    assert has_maps(grammar_source(Grammar("json_schema", json.dumps(schema)))) is expected
