"""Forms that upload files, lines of batches, and results that a killed process left on disk."""

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.serving.wire.anthropic.batches import parse_create as parse_messages
from headrace.serving.wire.batches import InputCheck, TokenUsage, add_usage, read_result, render_result
from headrace.serving.wire.multipart import FormReader, PartHead
from headrace.serving.wire.openai.batches import parse_create
from headrace.serving.wire.unknown_routes import CHAT
from tests.fuzz.target import Target

_KIND = "multipart/form-data; boundary=x"
_FORM = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nline\r\n--x--\r\n'
_LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m"}}'


def _form(data):
    """A form has the same parts whole and byte by byte."""
    whole, pieces = FormReader(_KIND), FormReader(_KIND)
    found = _joined(whole.feed(data))
    assert _joined(part for at in range(len(data)) for part in pieces.feed(data[at : at + 1])) == found
    assert whole.is_complete == pieces.is_complete


def _joined(parts):
    joined = []
    for part in parts:
        if isinstance(part, PartHead):
            joined.append([part, b""])
        else:
            joined[-1][1] += part
    return joined


def _lines(data):
    check = InputCheck(CHAT)
    for number, line in enumerate(data.split(b"\n"), 1):
        if not check.add(number, line):
            break
    check.end()
    assert check.total or check.errors


def _result(data):
    add_usage(TokenUsage(), data)
    line = render_result("a", request_id="r", status=200, body=data)
    assert line.count(b"\n") == 1
    assert read_result(line).custom_id == "a"


TARGETS = (
    Target(
        "upload-form",
        _form,
        refusals=(InvalidRequest,),
        make_seeds=lambda: {"file": _FORM},
        suite_cases=300,
        words=(b"\r\n--x", b"--", b"\r\n\r\n", b'name="', b"\r\n--x\r\n", b";" * 100),
    ),
    Target("batch-lines", _lines, make_seeds=lambda: {"two": _LINE + b"\n" + _LINE}, is_json=True, suite_cases=300),
    Target(
        "batch-answer",
        _result,
        make_seeds=lambda: {"usage": b'{"usage": {"prompt_tokens": 1}}'},
        is_json=True,
        suite_cases=300,
    ),
    Target(
        "batch-body",
        parse_create,
        is_json=True,
        suite_cases=300,
        make_seeds=lambda: {
            "chat": b'{"input_file_id": "f", "endpoint": "/v1/chat/completions", "completion_window": "24h",'
            b' "metadata": {"a": "b"}, "output_expires_after": {"anchor": "created_at", "seconds": 3600}}'
        },
    ),
    Target(
        "message-batch-body",
        parse_messages,
        is_json=True,
        suite_cases=300,
        make_seeds=lambda: {"one": b'{"requests": [{"custom_id": "a", "params": {"model": "m", "stream": false}}]}'},
    ),
    Target(
        "batch-result",
        read_result,
        refusals=(msgspec.DecodeError, UnicodeDecodeError, RecursionError),
        is_json=True,
        suite_cases=300,
        make_seeds=lambda: {"ok": render_result("a", request_id="r", status=200, body=b"{}")},
    ),
)
