"""
Every backend answers the clients that people already have, and answers like the native one, on the real model.

Of `test_clients` those tests are repeated that need something of the backend: streams, log probabilities, masks of a
grammar, details. The others differ in the dialect, whose code is the same for every backend.
vLLM's turn is in `tests/inference/backends/vllm/test_server.py`, whose server is expensive to start.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import plain_http
from tests.waiting import WAIT_S

from .conftest import Served, serve
from .test_clients import (  # noqa: F401 - collected here once more, for the server of each backend
    client,
    test_an_answer_matches_its_json_schema,
    test_the_hugging_face_client_streams_text_and_details,
    test_the_openai_client_gets_logprobs_of_each_token,
    test_the_openai_stream_has_the_text_of_the_whole_answer,
)

pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

BACKENDS = ("transformers", "torch")
TEXTS = ("The sky is", "Once upon a time", "def add(a, b):\n", "The capital of France is", "Der schnelle braune Fuchs")
CHAT = [{"role": "user", "content": "Name three colours."}]
NUM_TOKENS = 16
LEAST_AGREEMENT = 0.95
"""Share of positions where bf16 in another order of additions may not choose another token than the native kernels."""
NEAR_TIE = 0.1
"""Largest difference of the logprobs of two tokens that rounding to bf16 may swap."""
VOLATILE = {"id", "created", "seed", "system_fingerprint"}
BODIES = {
    "/v1/completions": {"model": "smollm2", "prompt": TEXTS[0], "max_tokens": 6, "temperature": 0, "logprobs": 0},
    "/v1/chat/completions": {"model": "smollm2", "messages": CHAT, "max_tokens": 6, "temperature": 0},
    "/generate": {
        "inputs": TEXTS[0],
        "parameters": {"max_new_tokens": 6, "details": True, "decoder_input_details": True},
    },
    "/invocations": {"inputs": TEXTS[1], "parameters": {"max_new_tokens": 6, "details": True}},
}


@pytest.fixture(scope="module")
def native(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The native backend on the same folder, which the others are compared with."""
    served = serve(
        smollm2_folder, tmp_path_factory.mktemp("native"), "--served-model-name", "smollm2", "--dtype", "bf16"
    )
    yield served
    served.stop()


@pytest.fixture(scope="module", params=BACKENDS)
def server(
    request: pytest.FixtureRequest, smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A server with each backend in turn."""
    flags = ("--served-model-name", "smollm2", "--backend", request.param, "--max-model-len", "2048")
    served = serve(smollm2_folder, tmp_path_factory.mktemp(request.param), *flags)
    yield served
    served.stop()


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["server"])


def post(served: Served, path: str, body: dict[str, object]) -> httpx.Response:
    response = plain_http.post(f"{served.url}{path}", json=body, timeout=WAIT_S)
    assert response.status_code == 200, response.text
    return response


def shape(value: object) -> object:
    """Return the structure of a JSON value: names, types and lengths, and what does not depend on numbers."""
    if isinstance(value, dict):
        return {key: "..." if key in VOLATILE else shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def agreeing_share(served: Served, text: str, answer: str) -> float:
    """Return the share of an answer's tokens that this server would have chosen too, or nearly."""
    body = {"model": "smollm2", "prompt": text + answer, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    (choice,) = post(served, "/v1/completions", body).json()["choices"]
    logprobs = choice["logprobs"]
    pairs = list(zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True))[-1 - NUM_TOKENS : -1]
    return sum(max(top.values()) - own <= NEAR_TIE for own, top in pairs) / len(pairs)


def test_the_greedy_answers_of_the_native_backend_are_those_of_each_backend(native: Served, server: Served) -> None:
    shares = []
    for text in TEXTS:
        body = {"model": "smollm2", "prompt": text, "max_tokens": NUM_TOKENS, "temperature": 0}
        answer = post(native, "/v1/completions", body).json()["choices"][0]["text"]
        shares.append(agreeing_share(server, text, answer))
    assert sum(shares) / len(shares) >= LEAST_AGREEMENT, shares


@pytest.mark.parametrize("path", BODIES)
def test_the_json_of_every_dialect_has_the_same_fields(native: Served, server: Served, path: str) -> None:
    expected, actual = (post(served, path, {**BODIES[path]}).json() for served in (native, server))
    assert shape(actual) == shape(expected)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [({"max_new_tokens": 3}, "length"), ({"max_new_tokens": 40, "stop": ["\n"]}, "stop_sequence")],
)
def test_finish_reasons_and_stop_strings_are_the_same(
    native: Served, server: Served, parameters: dict[str, object], reason: str
) -> None:
    body = {"inputs": "Colours: red, green,", "parameters": {**parameters, "details": True}}
    for served in (native, server):
        (answer,) = as_list(post(served, "/generate", body).json())
        assert answer["details"]["finish_reason"] == reason
        assert "\n" not in answer["generated_text"].rstrip("\n")


def test_a_bad_request_gets_the_same_error(native: Served, server: Served) -> None:
    body = {"model": "smollm2", "prompt": "x", "max_tokens": 5, "temperature": -1}
    answers = [
        plain_http.post(f"{served.url}/v1/completions", json=body, timeout=WAIT_S) for served in (native, server)
    ]
    assert answers[0].status_code == answers[1].status_code == 400
    assert answers[0].json() == answers[1].json()


def test_info_names_the_backend(server: Served, backend: str) -> None:
    info = plain_http.get(f"{server.url}/info", timeout=WAIT_S).json()
    assert info["headrace"]["backend"] == backend


def as_list(value: object) -> list[dict]:
    return value if isinstance(value, list) else [value]
