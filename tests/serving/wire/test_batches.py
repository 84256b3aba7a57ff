"""Lines of input files and of results, and the bodies that create batches."""

import json

import pytest

from headrace.core.errors import InvalidRequest
from headrace.serving.wire.anthropic import batches as anthropic
from headrace.serving.wire.batches import (
    InputCheck,
    TokenUsage,
    add_usage,
    read_result,
    render_result,
    render_unanswered,
)
from headrace.serving.wire.openai.batches import parse_create
from headrace.serving.wire.openai.files import read_form
from headrace.serving.wire.unknown_routes import CHAT, MESSAGES

BODY = {"model": "m", "messages": []}


def line(custom_id: object = "a", **changes: object) -> bytes:
    whole = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": BODY, **changes}
    return json.dumps({name: value for name, value in whole.items() if value is not None}).encode()


def errors_of(*lines: bytes | None, endpoint: str = CHAT, max_lines: int = 10) -> list[tuple[str, int | None]]:
    check = InputCheck(endpoint, max_lines=max_lines)
    for number, text in enumerate(lines, 1):
        if not check.add(number, text):
            break
    check.end()
    return [(error.code, error.line) for error in check.errors]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([line("a"), line("b")], []),
        ([], [("empty_file", None)]),
        ([line("a"), line("a"), line("b"), line("a")], [("duplicate_custom_id", 2), ("duplicate_custom_id", 4)]),
        ([b"{", b"\xff", b'{"body": ' + b"[" * 5000], [("invalid_json_line", n) for n in (1, 2, 3)]),
        ([b"[]", b"3", line(7)], [("invalid_request", n) for n in (1, 2, 3)]),
        ([line(None), line(method=None)], [("missing_required_parameter", 1), ("missing_required_parameter", 2)]),
        ([line("", method="PUT"), line("x" * 513)], [("invalid_custom_id", 1), ("invalid_custom_id", 2)]),
        ([line(method="GET")], [("invalid_method", 1)]),
        ([line(url="/v1/completions"), line("b", url="https://x/v1")], [("url_mismatch", 1), ("url_mismatch", 2)]),
        ([line("a"), line("b", body={"model": "other"})], [("model_mismatch", 2)]),
        (
            [line(body={"messages": []}), line("b", body={"model": ""})],
            [("missing_required_parameter", n) for n in (1, 2)],
        ),
        ([line(body={"model": "m", "stream": True}), line("b", body=[1])], [("invalid_request", n) for n in (1, 2)]),
        ([None], [("line_too_long", 1)]),
        ([line(str(n)) for n in range(11)], [("too_many_tasks", None)]),
    ],
)
def test_wrong_lines_are_named_with_their_numbers(lines, expected):
    assert errors_of(*lines) == expected


def test_errors_beyond_a_hundred_are_not_collected():
    assert len(errors_of(*[b"{"] * 200, max_lines=300)) == 100


def test_a_batch_of_messages_may_name_several_models():
    lines = [line(name, url=MESSAGES, body={"model": name}) for name in "ab"]
    assert errors_of(*lines, endpoint=MESSAGES) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"completion_window": "1h"}, "Expected '24h'"),
        ({"completion_window": None}, "Missing required parameter: 'completion_window'"),
        ({"input_file_id": None}, "'input_file_id'"),
        ({"endpoint": "/v1/moderations"}, "Expected one of /v1/responses, /v1/chat/completions"),
        ({"endpoint": "/v1/messages"}, "Expected one of"),
        ({"metadata": {str(n): "" for n in range(17)}}, "17 pairs"),
        ({"metadata": {"k" * 65: ""}}, "too long"),
        ({"metadata": {"k": "v" * 513}}, "too long"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, "from 3600 to 2592000"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "Expected 'created_at'"),
        ({"priority": 1}, "priority"),
    ],
)
def test_bodies_that_create_no_batch_are_refused(changes, said):
    body = {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h", **changes}
    with pytest.raises(InvalidRequest, match=said):
        parse_create(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "Missing required parameter: 'purpose'"),
        ({"purpose": "fine-tune"}, "Expected 'batch'"),
        ({"purpose": "batch", "expires_after[seconds]": "7200"}, "Expected 'created_at'"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "whole number"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "9" * 30},
            "whole number",
        ),
    ],
)
def test_forms_with_wrong_fields_are_refused(fields, said):
    with pytest.raises(InvalidRequest, match=said):
        read_form(fields)


def test_a_result_is_one_line_whatever_the_model_sent():
    pretty = json.dumps({"text": "a\u2028b\n"}, indent=1, ensure_ascii=False).encode()
    for body, embedded in ((pretty, json.loads(pretty)), (b"not JSON\n", "not JSON\n"), (b"", "")):
        text = render_result('i"d\n', request_id="r", status=200, body=body)
        assert len(text.decode().splitlines()) == 1
        assert json.loads(text)["response"] == {"status_code": 200, "request_id": "r", "body": embedded}
        assert json.loads(text)["custom_id"] == read_result(text).custom_id == 'i"d\n'


def test_a_request_that_was_not_executed_has_an_error_and_no_response():
    result = json.loads(render_unanswered("a", "batch_expired", request_id="r"))
    assert (result["response"], result["error"]["code"]) == (None, "batch_expired")


def test_tokens_are_added_in_the_words_of_all_dialects():
    usage = TokenUsage()
    for body in (
        {"usage": {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}},
        {"usage": {"input_tokens": 10, "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 5}}},
        {"usage": None},
        {"usage": {"prompt_tokens": "many"}},
        [],
    ):
        add_usage(usage, json.dumps(body).encode())
    assert usage == TokenUsage(input_tokens=11, cached_tokens=3, output_tokens=22, reasoning_tokens=5)


PARAMS = {"model": "m", "max_tokens": 1, "messages": []}


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([], "requests has 0 items"),
        ([{"custom_id": "a b", "params": PARAMS}], "requests.0.custom_id"),
        ([{"custom_id": "a", "params": PARAMS}] * 2, "requests.1.custom_id is a, as that of an earlier"),
        ([{"custom_id": "a", "params": {"model": 1}}], "requests.0.params"),
        ([{"custom_id": "a", "params": {**PARAMS, "stream": True}}], "stream is true"),
        ([{"custom_id": "a"}], "params"),
    ],
)
def test_bodies_that_create_no_batch_of_messages_are_refused(requests, said):
    with pytest.raises(InvalidRequest, match=said):
        anthropic.parse_create(json.dumps({"requests": requests}).encode())
