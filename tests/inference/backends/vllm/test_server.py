"""A server with the real vLLM beside one with the native engine: same model, same requests, same answers."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import plain_http
from tests.e2e.conftest import Served, serve
from tests.e2e.test_backends import (  # noqa: F401 - collected here once more, for the server of vLLM
    client,
    test_a_bad_request_gets_the_same_error,
    test_an_answer_matches_its_json_schema,
    test_finish_reasons_and_stop_strings_are_the_same,
    test_info_names_the_backend,
    test_the_greedy_answers_of_the_native_backend_are_those_of_each_backend,
    test_the_hugging_face_client_streams_text_and_details,
    test_the_json_of_every_dialect_has_the_same_fields,
    test_the_openai_client_gets_logprobs_of_each_token,
    test_the_openai_stream_has_the_text_of_the_whole_answer,
)
from tests.inference.backends.vllm.support import files_of, processes_of, serve_vllm, wait_until_gone
from tests.inference.models.adapter_files import random_tensors, write_adapter
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

NAME = ("--served-model-name", "smollm2", "--max-loras", "2", "--enable-lora", "--max-num-seqs", "16")
ADAPTERS = ("--allow-runtime-lora-updating", "--adapter-folders")
GRACE = ("--shutdown-grace-s", "200")
PROMPT = "The capital of France is"
IDLE = r"^headrace_running_sequences\S* 0(\.0)?$"


@pytest.fixture(scope="module")
def native(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("native")
    served = serve(smollm2_folder, folder, *NAME, "--dtype", "bf16", "--max-model-len", "512", "--backend", "native")
    yield served
    served.stop()


@pytest.fixture(scope="module")
def adapters_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def vllm(smollm2_folder: Path, adapters_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server drains at the end of the module: an answer in flight is completed; no process and no file is left."""
    served = serve_vllm(smollm2_folder, tmp_path_factory.mktemp("vllm"), *NAME, *GRACE, *ADAPTERS, str(adapters_folder))
    yield served
    processes = processes_of(served.process.pid)
    files = files_of(processes)
    with plain_http.stream("POST", f"{served.url}/generate_stream", json=story(20), timeout=WAIT_S) as response:
        lines = response.iter_lines()
        next(lines)
        served.process.terminate()
        events = [json.loads(line.removeprefix("data:")) for line in lines if line]
    assert events[-1]["details"]["generated_tokens"] == 20
    assert served.process.wait(timeout=WAIT_S) == 0
    wait_until_gone(processes)
    assert files
    assert not [path for path in files if path.exists()]


@pytest.fixture(scope="module")
def server(vllm: Served) -> Served:
    """The server for the tests of all backends."""
    return vllm


@pytest.fixture
def backend() -> str:
    return "vllm"


def story(max_new_tokens: int) -> dict[str, object]:
    return {
        "inputs": "Once upon a time",
        "parameters": {"max_new_tokens": max_new_tokens, "ignore_eos_token": True, "details": True},
    }


def both(native: Served, vllm: Served, path: str, body: dict[str, object]) -> tuple[httpx.Response, httpx.Response]:
    responses = [plain_http.post(f"{server.url}{path}", json=body, timeout=WAIT_S) for server in (native, vllm)]
    return responses[0], responses[1]


def shape(value: object) -> object:
    """A JSON value with the type in place of each number and text that differs between two servers."""
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items()}
    if isinstance(value, list):
        return [shape(part) for part in value]
    return float if isinstance(value, float) else value


VARYING = ("id", "created", "system_fingerprint")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 12, "details": True}}),
        ("/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 20, "details": True, "stop": ["."]}}),
        (
            "/generate",
            {
                "inputs": PROMPT,
                "parameters": {
                    "max_new_tokens": 3,
                    "details": True,
                    "decoder_input_details": True,
                    "top_n_tokens": 2,
                    "repetition_penalty": 1.2,
                },
            },
        ),
        ("/v1/completions", {"model": "smollm2", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 1}),
        (
            "/v1/chat/completions",
            {
                "model": "smollm2",
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
                "max_tokens": 12,
                "temperature": 0,
                "logprobs": True,
                "top_logprobs": 1,
                "n": 2,
            },
        ),
        ("/invocations", {"inputs": PROMPT, "parameters": {"max_new_tokens": 8, "return_full_text": True}}),
        (
            "/v1/completions",
            {
                "model": "smollm2",
                "prompt": "A number:",
                "max_tokens": 12,
                "temperature": 0,
                "structured_outputs": {"regex": "[0-9]{3}"},
            },
        ),
        ("/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 100_000}}),
    ],
    ids=["tgi", "stop", "prefill", "completions", "chat", "invocations", "grammar", "too_long"],
)
def test_greedy_answers_are_those_of_the_native_engine(
    native: Served, vllm: Served, path: str, body: dict[str, object]
) -> None:
    expected, answer = both(native, vllm, path, body)
    assert answer.status_code == expected.status_code
    wanted, got = shape(expected.json()), shape(answer.json())
    for value in (wanted, got):
        if isinstance(value, dict):
            for key in VARYING:
                value.pop(key, None)
    assert got == wanted


def test_a_stream_has_the_same_events(native: Served, vllm: Served) -> None:
    events = []
    for server in (native, vllm):
        with plain_http.stream("POST", f"{server.url}/generate_stream", json=story(8), timeout=WAIT_S) as response:
            lines = [line.removeprefix("data:") for line in response.iter_lines() if line]
        events.append([shape(json.loads(line)) for line in lines])
    assert events[1] == events[0]


def test_a_seed_repeats_an_answer_and_without_one_none_is_reported(vllm: Served) -> None:
    def ask(**more: object) -> dict[str, object]:
        parameters = {"max_new_tokens": 12, "details": True, "do_sample": True, "temperature": 1.5, **more}
        body = {"inputs": PROMPT, "parameters": parameters}
        return plain_http.post(f"{vllm.url}/generate", json=body, timeout=WAIT_S).json()

    answers = [ask(seed=7) for _ in range(2)]
    assert answers[0]["generated_text"] == answers[1]["generated_text"]
    assert answers[0]["details"]["seed"] == 7
    assert ask()["details"]["seed"] is None


def test_a_json_schema_is_followed_and_typical_p_is_refused(vllm: Served) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
    schema["additionalProperties"] = False
    grammar = {"type": "json", "value": schema}
    body = {"inputs": "A city as JSON:", "parameters": {"max_new_tokens": 40, "grammar": grammar}}
    answer = plain_http.post(f"{vllm.url}/generate", json=body, timeout=WAIT_S).json()
    assert list(json.loads(answer["generated_text"])) == ["city"]
    refused = plain_http.post(
        f"{vllm.url}/generate", json={"inputs": "x", "parameters": {"typical_p": 0.5}}, timeout=WAIT_S
    )
    assert refused.status_code == 422
    assert "typical_p" in refused.text


async def test_many_requests_run_together_and_closed_ones_leave(vllm: Served) -> None:
    import openai

    asynchronous = openai.AsyncOpenAI(base_url=f"{vllm.url}/v1", api_key="none", timeout=WAIT_S)
    stream = await asynchronous.completions.create(model="smollm2", prompt="Once", max_tokens=400, stream=True)
    await anext(aiter(stream))
    answers = [
        asynchronous.completions.create(model="smollm2", prompt=PROMPT, max_tokens=4, temperature=0) for _ in range(8)
    ]
    texts = {answer.choices[0].text for answer in await asyncio.gather(*answers)}
    assert len(texts) == 1
    await stream.close()
    async with plain_http.AsyncClient(timeout=WAIT_S) as plain:
        async with asyncio.timeout(WAIT_S):
            while not re.search(IDLE, (await plain.get(f"{vllm.url}/metrics")).text, re.MULTILINE):
                await asyncio.sleep(0.1)
    await asynchronous.close()


def test_an_adapter_changes_the_answer_while_it_is_loaded(
    vllm: Served, smollm2_folder: Path, adapters_folder: Path
) -> None:
    from headrace.inference.models.loading import load_model

    spec = load_model(str(smollm2_folder)).spec
    folder = write_adapter(adapters_folder / "tone", random_tensors(spec, rank=4, scale=0.5))

    def ask(model: str) -> httpx.Response:
        body = {"model": model, "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
        return plain_http.post(f"{vllm.url}/v1/completions", json=body, timeout=WAIT_S)

    before = ask("smollm2").json()["choices"][0]["text"]
    loading = {"lora_name": "tone", "lora_path": str(folder)}
    loaded = plain_http.post(f"{vllm.url}/v1/load_lora_adapter", json=loading, timeout=WAIT_S)
    assert loaded.status_code == 200, loaded.text
    assert ask("tone").json()["choices"][0]["text"] != before
    assert ask("smollm2").json()["choices"][0]["text"] == before
    plain_http.post(f"{vllm.url}/v1/unload_lora_adapter", json={"lora_name": "tone"}, timeout=WAIT_S)
    assert ask("tone").status_code == 404


def test_the_server_names_its_backend_and_vllms_processes_log_in_our_format(vllm: Served) -> None:
    assert plain_http.get(f"{vllm.url}/info").json()["headrace"]["backend"] == "vllm"
    lines = [line for line in vllm.log_path.read_text().splitlines() if line.startswith("{")]
    assert {"EngineCore", "VllmWorker-0"} <= {json.loads(line).get("process") for line in lines}


def test_vllm_has_processes_of_its_own(vllm: Served) -> None:
    assert len(processes_of(vllm.process.pid)) >= 2
    assert os.getpid() not in processes_of(vllm.process.pid)
