"""A dialect parses any bytes or refuses them in its own format: never another exception."""

import json
import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import HeadraceError
from headrace.inference.engine.service.validation import check_sampling
from headrace.serving.wire.constraints import JsonSchemaFormat, ResponseFormat, StructuredOutputs
from headrace.serving.wire.lmi.dialect import LmiBody, LmiParameters
from headrace.serving.wire.openai.chat import ChatBody, OpenAIChat
from headrace.serving.wire.openai.completions import CompletionsBody, OpenAICompletions
from headrace.serving.wire.openai.responses import OpenAIResponses, ResponsesBody
from headrace.serving.wire.registry import DIALECT_NAMES, get_dialect, select_dialect
from headrace.serving.wire.tgi.dialect import GenerateBody, GenerateParameters
from tests.inference.engine.support import LIMITS as ENGINE_LIMITS
from tests.serving.wire.samples import CONTEXT, MODEL
from tests.tables import check_rows

DIALECTS = [
    *(get_dialect(name) for name in DIALECT_NAMES),
    OpenAICompletions(),
    OpenAIChat(framing="jsonlines"),
    OpenAIResponses(),
]
IDS = [f"{dialect.name}-{number}" for number, dialect in enumerate(DIALECTS)]
JSON_DIALECTS = [dialect for dialect in DIALECTS if dialect.name != "torchserve"]
"""Those that want a JSON object; TorchServe takes any text."""
LIMITS = replace(ENGINE_LIMITS, request=CONTEXT.limits, max_model_len=2048, max_prompt_tokens=2000)

NAMES = sorted(
    {
        name
        for struct in (
            *(GenerateBody, GenerateParameters, LmiBody, LmiParameters, ChatBody, CompletionsBody, ResponsesBody),
            *(JsonSchemaFormat, ResponseFormat, StructuredOutputs),
        )
        for name in struct.__struct_encode_fields__
    }
    | {"role", "content", "type", "text", "function", "name", "schema", "json_schema", "value", "surprise"}
)

numbers = (
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0, -1, 1, 0.5, 2**64, 10**400])
)
words = st.text(max_size=4) | st.sampled_from(["user", "json", "regex", "function", "auto", "required", "text", "a"])
values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)
parameters = st.dictionaries(st.sampled_from(NAMES), values, max_size=4)
likely_parameters = st.dictionaries(st.sampled_from(NAMES), st.none() | st.booleans() | numbers | words, max_size=3)
constraints = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "json_object", "json_schema", "json", "regex", "structural_tag"]),
        **dict.fromkeys(("json_schema", "schema", "value", "json", "regex", "choice", "grammar", "format"), values),
        "json_object": st.booleans(),
    },
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "inputs": words | values,
        "prompt": words | values,
        "input": values | st.just([{"role": "user", "content": "hi"}]),
        "text": st.fixed_dictionaries({"format": values | constraints}),
        "messages": values | st.just([{"role": "user", "content": "hi"}]),
        "parameters": parameters | likely_parameters | values,
        "stream": st.booleans() | values,
        "tools": values | st.just([{"type": "function", "function": {"name": "f"}}]),
        "tool_choice": values,
        "response_format": values | constraints,
        "structured_outputs": values | constraints,
        "grammar": values | constraints,
    },
)


def check_is_understood_or_refused(dialect, data):
    try:
        for request in dialect.parse(data, CONTEXT).requests:
            check_sampling(request.sampling, LIMITS, vocab_size=MODEL.vocab_size)
    except HeadraceError as error:
        reply = dialect.render_error(error)
        assert 400 <= reply.status < 500
        assert json.loads(reply.body)
        assert b"\n" not in reply.body


def as_json(value):
    return json.dumps(value, ensure_ascii=False).encode("utf-8", errors="surrogatepass")


@pytest.mark.parametrize("dialect", DIALECTS, ids=IDS)
@given(data=st.binary(max_size=50))
def test_any_bytes_are_parsed_or_refused(dialect, data):
    check_is_understood_or_refused(dialect, data)


@pytest.mark.parametrize("dialect", DIALECTS, ids=IDS)
@given(value=values)
def test_any_json_value_is_parsed_or_refused(dialect, value):
    check_is_understood_or_refused(dialect, as_json(value))


@pytest.mark.parametrize("dialect", DIALECTS, ids=IDS)
@given(fields=bodies, more=likely_parameters)
def test_nearly_valid_bodies_are_parsed_or_refused(dialect, fields, more):
    data = as_json({"inputs": "a", "prompt": "a", "messages": [{"role": "user", "content": "a"}], **more, **fields})
    check_is_understood_or_refused(dialect, data)


BAD_BODIES = [
    b"",
    b"null",
    b"[]",
    b'"text"',
    b"{",
    b'{"inputs": NaN}',
    b'{"inputs": "a", "parameters": {"temperature": Infinity}}',
    b'{"inputs": "\xff\xfe", "prompt": "\xff", "messages": "\xff"}',
    b'{"inputs": "\\ud800", "prompt": "\\ud800", "messages": "\\udc00"}',
    b'{"messages": [{"role": "user", "content": ' + b"[" * 20000,
    b'{"x": ' + b"[" * 20000 + b"]" * 20000 + b"}",
    b'{"x": ' + b'{"a":' * 20000 + b"1" + b"}" * 20000 + b"}",
    b'{"inputs": "a", "parameters": {"seed": ' + b"9" * 6000 + b'}, "dimensions": ' + b"9" * 6000 + b"}",
    b"\x00" * 100,
    b"Today the weather is really nice",
]


@pytest.mark.parametrize("dialect", JSON_DIALECTS, ids=lambda dialect: dialect.name)
def test_well_known_bad_bodies_are_refused(dialect):
    check_rows(((str(data[:80]), (dialect, data)) for data in BAD_BODIES), check_is_refused)


def check_is_refused(dialect, data):
    with pytest.raises(HeadraceError) as caught:
        dialect.parse(data, CONTEXT)
    reply = dialect.render_error(caught.value)
    assert 400 <= reply.status < 500
    assert json.loads(reply.body)


@pytest.mark.parametrize("dialect", DIALECTS, ids=IDS)
def test_a_deeply_nested_value_in_an_untyped_field_is_refused_or_accepted(dialect):
    check_rows(((f"depth {depth}", (dialect, depth)) for depth in range(100, 1000, 60)), check_depth)


def check_depth(dialect, depth):
    fields = {
        "inputs": "a",
        "prompt": "a",
        "messages": [{"role": "user", "content": "a"}],
        "parameters": {"grammar": {"type": "json", "value": {"properties": "DEEP"}}},
        "tools": [{"function": {"name": "f", "parameters": {"properties": "DEEP"}}}],
        "tool_choice": "required",
        "guided_json": {"properties": "DEEP"},
        "response_format": {"type": "json", "value": {"properties": "DEEP"}},
        "structured_outputs": {"json": {"properties": "DEEP"}},
    }
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    check_is_understood_or_refused(dialect, as_json(fields).replace(b'"DEEP"', deep))
    for name in ("guided_json", "response_format", "structured_outputs"):
        del fields[name]
        check_is_understood_or_refused(dialect, as_json(fields).replace(b'"DEEP"', deep))


def test_choosing_a_dialect_never_fails():
    for data in (b"", b"\xff", b"[" * 50000, b'{"a":' * 50000):
        assert select_dialect(data, DIALECTS[0]) is DIALECTS[0]


def test_msgspec_refuses_values_that_json_does_not_have():
    """The dialects rely on it."""
    for text in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(text)
    assert msgspec.json.encode(math.inf) == b"null"
