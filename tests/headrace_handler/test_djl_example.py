"""The example of docs/custom-code/djl.md, from its folder to its streams."""

from pathlib import Path

import pytest

from headrace.handlers.djl import make_spec
from headrace.handlers.found import find_model
from headrace_handler.contracts import djl
from tests.headrace_handler.djl_models import djl_imports as djl_imports  # noqa: PLC0414 - a fixture
from tests.headrace_handler.djl_models import item, predict

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_code" / "djl"


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
