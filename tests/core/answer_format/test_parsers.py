"""Answers are split into the same parts, whatever pieces they arrive in."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.answer_format.formats import FORMATS, AnswerFormat, find_format
from headrace.core.answer_format.parser import CallOpening, CallText, ContentText, ReasoningText, Section, make_parser

BY_NAME = {known.name: known for known in FORMATS}
THINK, HARMONY = BY_NAME["think"], BY_NAME["harmony"]
MARKERS = sorted({marker for known in FORMATS for marker in known.markers})
TWICE = (
    "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    "<|start|>assistant<|channel|>analysis<|message|>Yes.<|start|>assistant<|channel|>final<|message|>Paris"
)
"""An answer of gpt-oss that reasons twice."""
WORDS = st.sampled_from(
    [
        *("a", "Ω", " ", "\n", "<", "|", "to=", "functions.f", "analysis", "final", "x" * 300),
        *MARKERS,
        *(marker[:-2] for marker in MARKERS),
    ]
)


def parts_of(known: AnswerFormat, pieces, opening="") -> list[tuple[str, str]]:
    """Return kind and text of the parts, neighbours of the same kind joined."""
    parser = make_parser(known, opening)
    found = [part for piece in pieces for part in parser.feed(piece)] + parser.finish()
    joined: list[tuple[str, str]] = []
    for part in found:
        kind = type(part).__name__
        text = part.name if isinstance(part, CallOpening) else part.text
        if joined and joined[-1][0] == kind and not isinstance(part, CallOpening):
            joined[-1] = (kind, joined[-1][1] + text)
        else:
            joined.append((kind, text))
    return joined


def spans_of(known: AnswerFormat, pieces, opening="") -> tuple[tuple[int, int], ...]:
    parser = make_parser(known, opening)
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    return parser.reasoning_spans


@pytest.mark.parametrize(
    ("known", "opening", "text", "expected"),
    [
        (THINK, "", "<think>\nWell.\n</think>Paris", ["\nWell.\n"]),
        (THINK, "", "<think>Well.</th", ["Well.</th"]),
        (THINK, "<think>", "Well.</think>Paris", ["Well."]),
        (THINK, "", "Paris", []),
        (HARMONY, "", "<|channel|>analysis<|message|>Well.", ["Well."]),
        (
            HARMONY,
            "",
            TWICE,
            ["Well.", "Yes."],
        ),
    ],
)
def test_the_spans_of_the_reasoning_leave_the_separators_out(known, opening, text, expected):
    whole = opening + text
    assert [whole[start:stop] for start, stop in spans_of(known, [text], opening)] == expected


def reasoning_and_content(known: AnswerFormat, text: str, opening="") -> tuple[str, str]:
    parts = parts_of(known, [text], opening)
    return tuple("".join(text for kind, text in parts if kind == wanted) for wanted in ("ReasoningText", "ContentText"))


@given(st.sampled_from(FORMATS), st.lists(WORDS, max_size=12), st.data())
@example(HARMONY, ["<|channel|>", "x" * 300, "x" * 205, "<|message|>", "a"], None)
def test_the_split_into_pieces_does_not_change_the_parts(known, words, data):
    text = "".join(words)
    pieces = list(text)
    if data is not None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
        pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parts_of(known, pieces) == parts_of(known, [text]) == parts_of(known, text)
    assert spans_of(known, pieces) == spans_of(known, [text]) == spans_of(known, text)


@pytest.mark.parametrize("known", [known for known in FORMATS if not known.has_channels], ids=lambda known: known.name)
def test_tags_are_found_that_arrive_character_by_character(known):
    before, after = known.wrapper or ("", "")
    text = f"{known.start}Well.{known.end}{before}Paris.{after}"
    assert parts_of(known, text) == [("ReasoningText", "Well."), ("ContentText", "Paris.")]


@pytest.mark.parametrize("known", [known for known in FORMATS if not known.has_channels], ids=lambda known: known.name)
def test_reasoning_between_tags_is_separated_from_the_content(known):
    before, after = known.wrapper or ("", "")
    text = f"\n{known.start}\nWell.\n\nYes.\n{known.end}\n\n{before}Paris.\nOf course.{after}"
    assert reasoning_and_content(known, text) == ("Well.\n\nYes.", "Paris.\nOf course.")
    assert reasoning_and_content(known, text.lstrip().removeprefix(known.start), known.start)[1] == "Paris.\nOf course."


@pytest.mark.parametrize(
    ("text", "opening", "expected"),
    [
        ("Hi <think>there</think>", "", ("", "Hi <think>there</think>")),
        ("<think>\n\n</think>\n\nHi", "", ("", "Hi")),
        ("<think>cut off in the mid", "", ("cut off in the mid", "")),
        ("<think>cut off in the </thi", "", ("cut off in the </thi", "")),
        ("\n<thi", "", ("", "\n<thi")),
        ("deep</think>Hi", "<think>", ("deep", "Hi")),
        ("\n\nHi", "<think></think>", ("", "Hi")),
        ("<think>a</think>b<think>c</think>", "", ("a", "b<think>c</think>")),
        ("", "<think>", ("", "")),
    ],
)
def test_unusual_tags_lose_no_text(text, opening, expected):
    assert reasoning_and_content(THINK, text, opening) == expected


@pytest.mark.parametrize(
    ("name", "text", "opening", "expected"),
    [
        ("cohere", "<|START_RESPONSE|>Hi<|END_RESPONSE|>", "", ("", "Hi")),
        ("cohere", "<|START_RESPONSE|>Hi<|END_RESPONSE|>", "<|START_THINKING|><|END_THINKING|>", ("", "Hi")),
        ("think-response", "<response>Hi</response>", "", ("", "<response>Hi</response>")),
        ("minimax-m3", "</mm:think>Hi", "", ("", "Hi")),
        ("solar", "<|content|>Hi<|end|>", "", ("", "Hi")),
        ("solar", "<|think|>a<|end|><|begin|>assistant<|content|>Hi<|end|>", "", ("a", "Hi")),
        ("solar", "<|content|>Hi<|end|><|begin|>assistant<|tool_calls|>", "<|think|><|end|>", ("", "Hi<|tool_calls|>")),
        ("solar", "<|tool_calls|>", "", ("", "<|tool_calls|>")),
    ],
)
def test_tags_around_the_content_are_left_out(name, text, opening, expected):
    assert reasoning_and_content(BY_NAME[name], text, opening) == expected


@pytest.mark.parametrize("num_characters", [502, 505, 510, 600])
def test_a_header_that_is_too_long_is_content_at_once(num_characters):
    text = "x" * num_characters + "<|message|>a"
    assert make_parser(HARMONY, "").feed(f"<|channel|>{text}") == [ContentText(text)]


FINAL = "<|start|>assistant<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{ANALYSIS}Easy.<|end|>{FINAL}Paris<|return|>", ("Easy.", "Paris")),
        (f"{ANALYSIS}One.<|end|><|start|>assistant{ANALYSIS}Two.<|end|>{FINAL}Hi", ("One.\nTwo.", "Hi")),
        (f"{ANALYSIS}Easy.{FINAL}Paris", ("Easy.", "Paris")),
        (f"{ANALYSIS}Easy.<|channel|>final<|message|>Paris", ("Easy.", "Paris")),
        (f"{ANALYSIS}cut off in the", ("cut off in the", "")),
        (f"{ANALYSIS}Easy.<|end|><|start|>assistant<|chan", ("Easy.", "")),
        (f"{ANALYSIS}Easy.<|end|>and on", ("Easy.", "and on")),
        ("plain <|channel|>final<|message|>text", ("", "plain \ntext")),
        ("<|channel|>commentary<|message|>Let me look.<|end|>", ("", "Let me look.")),
        ("<|channel|>analysis to=python code<|message|>print(1)<|call|>", ("print(1)", "")),
        ("<|channel|>final <|constrain|>json<|message|>{}", ("", "{}")),
        ("<|channel|>analysis<|return|>", ("", "")),
    ],
)
def test_channels_are_reasoning_and_content(text, expected):
    assert reasoning_and_content(HARMONY, text) == expected


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        " to=functions.get_weather<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.get_weather<|constrain|>json<|message|>",
        "<|channel|>analysis to=functions.get_weather code<|message|>",
    ],
)
def test_a_message_to_a_function_is_a_call(header):
    parser = make_parser(HARMONY)
    parts = parser.feed(header)
    assert (parts, parser.section, parser.called) == ([CallOpening("get_weather")], Section.CALL, "get_weather")
    assert parser.feed('{"city": "Rome"}<|call|>') == [CallText('{"city": "Rome"}')]


def test_the_section_tells_where_the_answer_is():
    parser = make_parser(THINK)
    assert parser.section is Section.UNDECIDED
    assert (parser.feed("<think>a"), parser.section) == ([ReasoningText("a")], Section.REASONING)
    assert (parser.feed("</thi"), parser.section) == ([], Section.REASONING)
    assert (parser.feed("nk>"), parser.section) == ([], Section.CONTENT)
    assert parser.feed("b") == [ContentText("b")]


@pytest.mark.parametrize(
    ("known", "prompt", "opening"),
    [
        (THINK, "<think>old</think><|im_start|>assistant\n", ""),
        (THINK, "<|im_start|>assistant\n<think>\n", "<think>"),
        (THINK, "<|im_start|>assistant\n<think>\n\n</think>\n\n", "<think></think>"),
        (HARMONY, "<|start|>user<|message|>Hi<|end|><|start|>assistant", ""),
        (HARMONY, "<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"),
        (HARMONY, "<|start|>assistant<|channel|>final<|message|>Hi<|end|>", ""),
        (HARMONY, "no message", ""),
        (BY_NAME["solar"], "<|begin|>user<|content|>Hi<|end|><|begin|>assistant", ""),
        (BY_NAME["solar"], "Hi<|end|><|begin|>assistant<|think|><|end|><|begin|>assistant", "<|think|><|end|>"),
    ],
)
def test_the_opening_is_what_the_template_wrote_of_the_answer(known, prompt, opening):
    assert known.opening(prompt) == opening


def test_a_format_is_recognised_by_the_separators_in_the_template():
    assert find_format(["{{ messages }}"]) is None
    assert find_format(["... <think> ..."]) is None
    assert find_format(["plain", "'<think>' '</think>'"]) == THINK
    assert find_format(["<think> </think> <response> </response>"]).name == "think-response"
    assert find_format(["<|start|>assistant<|channel|>final<|message|>"]) == HARMONY
    assert find_format(["[THINK] [/THINK]"]).name == "mistral"
