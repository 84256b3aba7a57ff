"""The examples of docs/custom-code/djl.md, from their folders to their streams."""

import json
from pathlib import Path

import pytest

from headrace.serving.handlers.djl import make_spec
from headrace.serving.handlers.found import find_model
from headrace_handler.contracts import djl
from tests.headrace_handler.djl_models import djl_imports as djl_imports  # noqa: PLC0414 - a fixture
from tests.headrace_handler.djl_models import item, predict

EXAMPLES = Path(__file__).parents[2] / "examples" / "custom_code"
EXAMPLE = EXAMPLES / "djl"


@pytest.mark.usefixtures("djl_imports")
def test_the_example_classifies_alone_in_batches_and_in_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE)
    spec = make_spec(find_model(EXAMPLE, model_name="m", env={}))
    contract = djl.make()
    contract.load(spec.load)
    texts = [item(b'{"inputs": "%b"}' % text) for text in (b"I love it", b"awful", b"a table")]

    alone = predict(contract, item(b'{"inputs": "great"}'))
    predict(contract, *texts)
    stream = predict(contract, item(b'{"inputs": "Good! Bad.", "stream": true}'))

    assert alone.json == {"label": "positive", "score": 2}
    assert [text.reply.json["label"] for text in texts] == ["positive", "negative", "neutral"]
    assert stream.chunks == [b'{"label": "positive", "score": 1}\n', b'{"label": "negative", "score": -1}\n']
    assert (spec.batch_size, spec.max_batch_delay_ms, spec.call_timeout_s) == (8, 20, 30)


@pytest.mark.usefixtures("djl_imports")
def test_the_example_of_formatters_changes_requests_responses_and_events(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = EXAMPLES / "djl_formatters"
    monkeypatch.chdir(folder)
    contract = djl.make()
    contract.load(make_spec(find_model(folder, model_name="m", env={})).load)

    def formatted(part: str, content: bytes) -> bytes:
        body: bytes = predict(contract, item({part: content}), mode="format").body
        return body

    request = json.loads(formatted("input", b'{"question": "Why?", "words": 4, "stream": true}'))
    whole = b'{"choices": [{"message": {"content": "So."}}], "usage": {"completion_tokens": 2}}'
    event = b'data: {"choices": [{"delta": {"content": "So"}}]}\n\n'

    assert request == {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 4, "stream": True}
    assert formatted("output", whole) == b'{"answer": "So.", "tokens": 2}\n'
    assert formatted("event", event) == b'{"part": "So"}\n'
    assert formatted("event", b"data: [DONE]\n\n") == b'{"done": true}\n'
