"""Each of the published readers gets the text of the whole answer from a stream, wherever the network splits it."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.serving.wire.lmi.dialect import Lmi
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.completions import OpenAICompletions
from headrace.serving.wire.tgi.dialect import Tgi
from tests.serving.wire.readers import as_events, read_details, read_lmi_fragments, read_outputs, read_tgi
from tests.serving.wire.samples import answers, cut, line_objects, parse, sse_objects, streamed, whole

places = st.lists(st.integers(0, 3000), max_size=30)
HELLO = [{"role": "user", "content": "hi"}]


def events_of(parts, cuts):
    return as_events(cut(b"".join(parts), cuts))


@pytest.mark.parametrize("version", ["1.0", "3"])
@given(sample=answers(), cuts=places)
def test_tgi_s_reader_gets_the_text_of_the_whole_answer(version, sample, cuts):
    text, chunks = sample
    assume(all(token.text != "</s>" or token.special for chunk in chunks for token in chunk.tokens))
    dialect = Tgi(version=version)
    fields = {"inputs": "hi", "parameters": {"return_full_text": False, "details": True}}
    parts = streamed(parse(dialect, **fields, stream=True), chunks)
    (written,) = json.loads(whole(parse(dialect, **fields), chunks))
    assert read_tgi(events_of(parts, cuts)) == written["generated_text"] == text
    last = sse_objects(parts)[-1]
    assert last["generated_text"] == text
    assert last["details"]["finish_reason"] == written["details"]["finish_reason"]
    assert [item["token"] for item in sse_objects(parts)] == written["details"]["tokens"]


@given(sample=answers())
def test_one_part_is_one_event(sample):
    _, chunks = sample
    parts = streamed(parse(Tgi(), inputs="hi", stream=True), chunks)
    assert all(part.startswith(b"data: {") and part.endswith(b"}\n\n") and part.count(b"\n") == 2 for part in parts)
    assert len(parts) == sum(len(chunk.tokens) for chunk in chunks)


@given(sample=answers())
def test_fragments_make_one_json_object(sample):
    text, chunks = sample
    parts = streamed(parse(Lmi(version="0.25"), inputs="hi"), chunks)
    assert json.loads(b"".join(parts)) == {"generated_text": text}
    assert parts[0] == b'{"generated_text": "'
    for part in parts:
        part.decode()


plain = st.lists(st.text("abcABC .,\n😀é中{}:_", min_size=1, max_size=5), min_size=1, max_size=10)


@given(sample=answers(plain))
def test_the_fragment_reader_gets_the_text(sample):
    """Within the limits of that reader: it knows no escape but the newline, and strips quotes at the ends."""
    text, chunks = sample
    parts = streamed(parse(Lmi(version="0.25"), inputs="hi"), chunks)
    assert read_lmi_fragments(as_events(parts)) == text


@given(sample=answers(), cuts=places)
def test_the_reader_of_outputs_gets_the_text(sample, cuts):
    text, chunks = sample
    parts = streamed(parse(Lmi(version="0.25", formatter="jsonlines"), inputs="hi"), chunks)
    assert read_outputs(events_of(parts, cuts)) == text


@given(sample=answers(), cuts=places)
def test_the_reader_of_details_gets_text_logprobs_and_reason(sample, cuts):
    text, chunks = sample
    parts = streamed(parse(Lmi(version="0.26"), inputs="hi", parameters={"details": True}), chunks)
    joined, generated, logprobs, reason = read_details(events_of(parts, cuts))
    assert joined == generated == text
    assert reason == chunks[-1].finish.reason.value
    *tokens, last = (token for chunk in chunks for token in chunk.tokens)
    assert len(logprobs) == len(tokens) + (bool(last.text) and not last.special)


@pytest.mark.parametrize(
    "dialect", [Lmi(version="0.26"), Lmi(version="0.27"), Lmi(version="17"), Lmi(version="0.27", tgi_compat=True)]
)
@given(sample=answers(), cuts=places)
def test_tgi_s_reader_reads_lmi_s_lines(dialect, sample, cuts):
    """The notebooks of newer containers index `token.text` on every line."""
    text, chunks = sample
    parts = streamed(parse(dialect, inputs="hi", stream=True), chunks)
    assert read_tgi(events_of(parts, cuts), stop_token="<|none|>") == text
    last = (sse_objects if dialect.tgi_compat else line_objects)(parts)[-1]
    assert last["generated_text"] == text
    if dialect.version in {"0.27", "17"}:
        written = json.loads(whole(parse(dialect, inputs="hi"), chunks))
        assert (written[0] if dialect.tgi_compat else written)["generated_text"] == text


@given(sample=answers())
def test_completions_have_the_same_text_streamed_and_whole(sample):
    text, chunks = sample
    dialect = OpenAICompletions()
    fields = {"prompt": "hi", "logprobs": 1}
    objects = sse_objects(streamed(parse(dialect, **fields, stream=True), chunks))
    (choice,) = json.loads(whole(parse(dialect, **fields), chunks))["choices"]
    pieces = [item["choices"][0] for item in objects]
    assert "".join(piece["text"] for piece in pieces) == choice["text"] == text
    for name in choice["logprobs"]:
        assert [value for piece in pieces for value in piece["logprobs"][name]] == choice["logprobs"][name]
    assert pieces[-1]["finish_reason"] == choice["finish_reason"]


@given(sample=answers(), with_tools=st.booleans())
def test_chats_have_the_same_text_streamed_and_whole(sample, with_tools):
    text, chunks = sample
    dialect = OpenAIChat()
    fields = {"messages": HELLO, "logprobs": True, "top_logprobs": 1}
    if with_tools:
        fields["tools"] = [{"type": "function", "function": {"name": "f"}}]
    objects = sse_objects(streamed(parse(dialect, **fields, stream=True), chunks))
    (choice,) = json.loads(whole(parse(dialect, **fields), chunks))["choices"]
    deltas = [item["choices"][0] for item in objects]
    assert "".join(delta["delta"].get("content", "") for delta in deltas) == choice["message"]["content"] == text
    logprobs = [entry for delta in deltas if delta["logprobs"] for entry in delta["logprobs"]["content"]]
    assert logprobs == choice["logprobs"]["content"]
    assert deltas[-1]["finish_reason"] == choice["finish_reason"]
