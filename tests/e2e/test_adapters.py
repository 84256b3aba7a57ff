"""Adapters on a real server with the real model: loaded and unloaded while requests run, and chosen by three APIs."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from headrace.inference.models.gguf_file import open_gguf
from headrace.inference.models.gguf_reader import read_gguf_spec
from tests import plain_http
from tests.inference.models.adapter_files import random_tensors, write_adapter
from tests.waiting import WAIT_S

from .conftest import Served, serve

pytestmark = pytest.mark.model

PROMPT = "The sea is"


@pytest.fixture(scope="module")
def folder(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of the adapters `first` and `second`."""
    made = tmp_path_factory.mktemp("adapters")
    _, spec = read_gguf_spec(open_gguf(smollm2_path))
    for seed, name in enumerate(("first", "second")):
        write_adapter(made / name, random_tensors(spec, seed=seed, scale=2.0))
    return made


@pytest.fixture(scope="module")
def served(smollm2_path: Path, folder: Path) -> Iterator[Served]:
    flags = ("--allow-runtime-lora-updating", "--adapter-folders", str(folder), "--max-model-len", "256")
    neutral = ("--generation-config", "vllm")  # greedy texts of OpenAI's API are compared with those of TGI's
    made = serve(
        smollm2_path,
        folder,
        *(
            "--served-model-name",
            "smollm2",
            "--dialect",
            "lmi-17",
            "--adapter",
            f"first={folder / 'first'}",
            *flags,
            *neutral,
        ),
    )
    yield made
    made.stop()


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with plain_http.Client(base_url=served.url, timeout=WAIT_S) as made:
        yield made


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="-", max_retries=0) as made:
        yield made


def text_of(client: openai.OpenAI, model: str, tokens: int = 8) -> str:
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=tokens, temperature=0)
    return str(answer.choices[0].text)


def test_openai_tgi_and_lmi_choose_the_same_adapter(http: httpx.Client, client: openai.OpenAI) -> None:
    expected = text_of(client, "first")
    assert expected != text_of(client, "smollm2")
    parameters = {"max_new_tokens": 8}
    tgi = http.post("/generate", json={"inputs": PROMPT, "parameters": {**parameters, "adapter_id": "first"}})
    assert tgi.json()["generated_text"] == expected
    lmi = http.post("/invocations", json={"inputs": PROMPT, "parameters": parameters, "adapters": "first"})
    assert lmi.json()["generated_text"].removeprefix(PROMPT) == expected
    plain = http.post("/invocations", json={"inputs": PROMPT, "parameters": parameters})
    assert plain.json()["generated_text"].removeprefix(PROMPT) == text_of(client, "smollm2")


def test_adapters_are_loaded_replaced_and_unloaded_while_a_stream_runs(
    folder: Path, http: httpx.Client, client: openai.OpenAI
) -> None:
    expected, base = text_of(client, "first", tokens=64), text_of(client, "smollm2")
    stream = client.completions.create(model="first", prompt=PROMPT, max_tokens=64, temperature=0, stream=True)
    parts = [next(stream).choices[0].text]
    second = {"lora_name": "second", "lora_path": str(folder / "second")}
    assert http.post("/v1/load_lora_adapter", json=second).status_code == 200
    other = text_of(client, "second")
    assert len({base, expected[: len(other)], other}) == 3
    assert http.post("/v1/load_lora_adapter", json={**second, "lora_name": "first", "load_inplace": True}).is_success
    assert text_of(client, "first") == other, "the new content, not cached blocks of the old"
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "first"}).is_success
    parts += [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert "".join(parts) == expected, "the stream keeps the adapter that it began with"

    with pytest.raises(openai.NotFoundError, match="`first` does not exist"):
        text_of(client, "first")
    metrics = http.get("/metrics").text
    assert 'headrace_adapter_output_tokens_total{adapter="second",model_name="smollm2"} 8.0' in metrics
    assert 'adapter="first"' not in metrics
    first = {"lora_name": "first", "lora_path": str(folder / "first")}
    assert http.post("/v1/load_lora_adapter", json=first).is_success
    assert text_of(client, "first", tokens=64) == expected
