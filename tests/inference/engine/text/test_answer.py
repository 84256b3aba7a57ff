"""Text of answers: exact bytes in any pieces, stop strings never shown, tokens that join to the text."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.core.generation import SamplingParams
from headrace.inference.engine.text.answer import AnswerText
from headrace.inference.engine.text.detokenizer import Detokenizer, TokenTable
from headrace.inference.engine.text.stop import StopMatch, StopMatcher
from tests.inference.engine.support import BOS, EOS, byte_tokenizer

TABLE = TokenTable(byte_tokenizer())
PIECES = st.sampled_from(["a", "b", "ab", "aab", "é", "漢", "🌊", "\n", "👩‍🚀"])
TEXTS = st.lists(PIECES, max_size=30).map("".join)
STOPS = st.lists(st.lists(PIECES, min_size=1, max_size=4).map("".join), min_size=1, max_size=4, unique=True)


def first_match(text: str, stops: list[str]) -> tuple[int, int] | None:
    """The definition: the match that is complete first, the longest of those (start, stop)."""
    for stop in range(1, len(text) + 1):
        starts = [stop - len(s) for s in stops if text[:stop].endswith(s)]
        if starts:
            return min(starts), stop
    return None


@given(st.binary(max_size=60), st.data())
def test_joined_pieces_equal_the_decoded_whole(raw: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    detokenizer = Detokenizer()
    text = ""
    for piece in pieces:
        try:
            whole: str | None = piece.decode()
        except UnicodeDecodeError:
            whole = None
        text += detokenizer.push(piece, whole)
    assert text + detokenizer.finish() == raw.decode(errors="replace")


@given(TEXTS, STOPS, st.data())
@example("aab", ["ab", "aab"], None)
def test_a_stop_matcher_finds_the_same_as_a_search_of_the_whole_text(
    text: str, stops: list[str], data: st.DataObject | None
) -> None:
    matcher = StopMatcher(tuple(stops))
    position, found = 0, None
    expected = first_match(text, stops)
    while position < len(text) and found is None:
        size = 1 if data is None else data.draw(st.integers(1, 5))
        found = matcher.push(text[position : position + size])
        position += size
        if found is None:
            seen = text[:position]
            assert expected is None or matcher.num_released <= expected[0]
            held = seen[matcher.num_released :]
            assert held == max((e for e in _endings(seen) if any(s.startswith(e) for s in stops)), key=len, default="")
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.string in stops
        # A piece may complete several; the one that was complete first wins.
        assert (found.start, found.stop) == expected


def _endings(text: str) -> list[str]:
    return [text[i:] for i in range(len(text))]


def push_all(token_ids: list[int], params: SamplingParams) -> tuple[str, list[tuple[str, bool]], StopMatch | None]:
    """Text, tokens (text, special) and match of an answer, released step by step."""
    answer = AnswerText(TABLE, params)
    text, tokens = "", []
    match = None
    for token_id in token_ids:
        match = answer.push(token_id, None, ())
        if match is not None:
            break
        piece, released = answer.release()
        text += piece
        tokens += released
    piece, released = answer.finish(match)
    tokens += released
    return text + piece, [(t.text, t.special) for t in tokens], match


@settings(max_examples=200)
@given(st.lists(st.integers(0, 257), max_size=40), st.booleans())
def test_tokens_join_to_the_text_and_none_is_lost(token_ids: list[int], skip: bool) -> None:
    text, tokens, _ = push_all(token_ids, SamplingParams(skip_special_tokens=skip))
    assert text == byte_tokenizer().decode(token_ids, skip_special_tokens=skip)
    assert len(tokens) == len(token_ids)
    assert "".join(t for t, special in tokens if not (special and skip)) == text


@settings(max_examples=300)
@given(TEXTS, STOPS, st.booleans())
def test_stop_strings_never_leak(text: str, stops: list[str], include: bool) -> None:
    params = SamplingParams(stop=tuple(stops), include_stop=include)
    shown, tokens, match = push_all(list(text.encode()), params)
    expected = first_match(text, stops)
    if expected is None:
        assert (shown, match) == (text, None)
    else:
        assert shown == text[: expected[1] if include else expected[0]]
    assert "".join(t for t, _ in tokens) == shown


@pytest.mark.parametrize("skip", [True, False])
def test_an_incomplete_character_before_the_end_token_becomes_a_replacement_character(skip: bool) -> None:
    answer = AnswerText(TABLE, SamplingParams(skip_special_tokens=skip))
    answer.push(0xF0, None, ())
    assert answer.release() == ("", ())
    answer.push_end(EOS, None, ())
    text, tokens = answer.finish()
    assert text == ("\ufffd" if skip else "\ufffd<eos>")
    assert "".join(t.text for t in tokens if not (t.special and skip)) == text


def test_a_special_token_keeps_its_name_and_stays_out_of_the_text() -> None:
    text, tokens, _ = push_all([104, BOS, 105], SamplingParams())
    assert text == "hi"
    assert tokens == [("h", False), ("<bos>", True), ("i", False)]


def test_an_ordinary_stop_token_shows_only_with_include_stop() -> None:
    for include, shown in ((False, ""), (True, "!")):
        answer = AnswerText(TABLE, SamplingParams(include_stop=include))
        answer.push_end(ord("!"), None, ())
        text, tokens = answer.finish()
        assert (text, [t.text for t in tokens]) == (shown, [shown])


def test_text_is_held_back_only_while_it_can_become_a_stop_string() -> None:
    answer = AnswerText(TABLE, SamplingParams(stop=("STOP",)))
    shown = []
    for character in "a STOIC":
        answer.push(ord(character), None, ())
        shown.append(answer.release()[0])
    assert shown == ["a", " ", "", "", "", "STOI", "C"]
