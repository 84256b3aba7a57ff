"""Texts of models, which clients and the files of a model steer: reasoning and tool calls in them."""

import json

from headrace.core.answer_format.call_forms import CALL_MARKERS
from headrace.core.answer_format.formats import FORMATS
from headrace.serving.wire.openai.answer_stream import AnswerPlan, AnswerStream, ArgumentsDelta, CallStart, merged
from headrace.serving.wire.openai.tools import ToolPlan
from tests.fuzz.target import Target
from tests.serving.wire.test_looks_like_calls import AS_CALLS

_NAMES = frozenset({"f", "get"})
_PLANS = (
    *(AnswerPlan(tools=ToolPlan(mode="auto", names=_NAMES), format=known) for known in (None, *FORMATS)),
    AnswerPlan(tools=ToolPlan(mode="required", names=_NAMES)),
    AnswerPlan(tools=ToolPlan(mode="named", names=_NAMES, named="f")),
)


def _answer(data):
    """The first byte chooses a format. Deltas do not depend on how a text is split; calls have JSON and known names."""
    plan, text = _PLANS[data[0] % len(_PLANS) if data else 0], data[1:].decode("utf-8", "replace")
    whole = _deltas(plan, [text])
    cut = sum(data) % (len(text) + 1)
    assert _deltas(plan, [text[:cut], text[cut : cut + 1], text[cut + 1 :]]) == whole
    arguments = {delta.index: "" for delta in whole if isinstance(delta, CallStart)}
    for delta in whole:
        if isinstance(delta, CallStart):
            assert delta.name in _NAMES
        elif isinstance(delta, ArgumentsDelta):
            arguments[delta.index] += delta.text
    if plan.tools.mode == "auto":
        assert all(isinstance(json.loads(written), dict) for written in arguments.values())


def _deltas(plan, pieces):
    stream = AnswerStream(plan, "")
    deltas = [delta for piece in pieces if piece for delta in stream.feed(piece)]
    return merged([*deltas, *stream.finish()])


def _seeds():
    made = {f"call-{index}": b"\0" + text.encode() for index, (text, _) in enumerate(AS_CALLS)}
    for index, known in enumerate(FORMATS, start=1):
        written = f"{known.start}{known.label}why{known.end}{known.filler}content"
        made[known.name] = bytes([index]) + written.encode()
    harmony = (
        b"<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}"
    )
    return made | {"harmony": b"\1" + harmony, "named": b'\x10{"a": 1}'}


_MARKERS = (text.encode() for known in FORMATS for text in known.markers if text)

TARGETS = (
    Target(
        "answer-text",
        _answer,
        refusals=(),
        make_seeds=_seeds,
        words=(
            *(marker.encode() for marker in sorted(CALL_MARKERS)),
            *sorted({*_MARKERS}),
            *(b'{"name": "f", "arguments": {}}', b"[f(a=", b"'''", b"\\u", b"{" * 5000, b"[" * 5000, b'\\"' * 3000),
            *(b"(" * 5000, b"f(a=" * 2000, b" " * 5000, b'"a": ', b"call:f{", b"None", b"1e999", b"\xed\xa0\x80"),
        ),
        suite_cases=300,
    ),
)
