"""The example of docs/custom-code/torchserve.md, from its folder to its streams."""

from pathlib import Path

import pytest

from headrace.serving.handlers.found import find_model
from headrace.serving.handlers.torchserve import make_spec
from headrace_handler.contracts.torchserve import make
from tests.headrace_handler.support import call

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_code" / "torchserve"


@pytest.mark.usefixtures("ts_imports")
def test_the_example_streams_words_in_micro_batches() -> None:
    spec = make_spec(find_model(EXAMPLE, model_name="m", env={}))
    contract = make()
    contract.load(spec.load)

    replies = call(contract, b"hello there", b"one", b"two three four", path="", content_type="text/plain")

    assert [reply.chunks for reply in replies] == [
        [b"HELLO ", b"THERE ", b"!"],
        [b"ONE ", b"!"],
        [b"TWO ", b"THREE ", b"FOUR ", b"!"],
    ]
    assert (spec.batch_size, spec.max_batch_delay_ms, spec.call_timeout_s) == (4, 20, 30)
