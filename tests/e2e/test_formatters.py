"""A `model.py` for preprocessing and postprocessing, with its `requirements.txt`, around the real model."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Served, serve
from tests.serving.handlers.wheels import make_wheel
from tests.waiting import WAIT_S

MODEL = """
import json

import glossary
from djl_python import Input
from djl_python.encode_decode import decode
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import output_formatter
from djl_python.request_io import RequestOutput, TextInput


@input_formatter
def preprocess(input_item: Input, tokenizer=None, **kwargs) -> TextInput:
    payload = decode(input_item, input_item.get_property("Content-Type"))
    return TextInput(input_text=glossary.expand(payload["inputs"]), parameters=payload["parameters"])


@output_formatter
def postprocess(request_output: RequestOutput) -> str:
    sequence = request_output.sequences[request_output.best_sequence_index]
    token, index, is_first, is_last = sequence.get_next_token()
    line = {"token": token.text, "log_prob": token.log_prob}
    if is_last:
        line["finish_reason"] = sequence.finish_reason
        line["prompt"] = request_output.input.input_text
    return json.dumps(line) + "\\n"
"""

PROPERTIES = """
engine=MPI
option.model_id={model}
option.tensor_parallel_degree=max
option.max_rolling_batch_size=32
option.rolling_batch=auto
option.model_loading_timeout = 7200
"""
"""The article's serving.properties about LMI 0.26."""


@pytest.fixture(scope="module")
def served(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, home = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("home")
    (folder / "model.py").write_text(MODEL)
    (folder / "serving.properties").write_text(PROPERTIES.format(model=smollm2_path))
    (folder / "requirements.txt").write_text("glossary==1.0\n")
    make_wheel(
        folder / "requirements",
        "glossary",
        source='def expand(text):\n    return text.replace("FR", "France")\n',
    )
    env = {"HEADRACE_HOME": str(home), "SERVING_OFFLINE": "true"}
    served = serve(folder, home, "--dialect", "lmi-0.26", "--handler", "auto", env=env)
    yield served
    assert served.stop() == 0


@pytest.mark.parametrize("details", [True, False])
def test_the_model_answers_through_both_functions_token_by_token(served: Served, details: bool) -> None:
    body = {"inputs": "The capital of FR is", "parameters": {"max_new_tokens": 4, "details": details}}

    with httpx.stream("POST", f"{served.url}/invocations", json=body, timeout=WAIT_S) as response:
        lines = [json.loads(line) for line in response.iter_lines()]

    assert response.status_code == 200
    assert len(lines) == 4
    assert lines[0]["token"] == " Paris"
    assert all(line["log_prob"] < 0 for line in lines)
    assert (lines[-1]["finish_reason"], lines[-1]["prompt"]) == ("length", "The capital of France is")


def test_a_request_that_the_function_cannot_read_is_refused_in_djls_words(served: Served) -> None:
    response = httpx.post(f"{served.url}/invocations", json={"inputs": "x"}, timeout=WAIT_S)

    assert response.status_code == 424
    text = "Input Parsing failed. Ensure that the request payload is valid. Invalid Request Property: 'parameters'"
    assert response.json() == {"error": text, "code": 424}
