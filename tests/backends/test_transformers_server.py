"""`headrace serve FOLDER --backend transformers` as a user runs it, through the routes of OpenAI and TGI."""

import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.e2e.conftest import Served, serve
from tests.runner.transformers.checkpoints import write_network
from tests.waiting import WAIT_S

GREEDY = {"max_new_tokens": 6, "details": True, "do_sample": False}


@pytest.fixture(scope="module")
def bloom(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("bloom")
    write_network("bloom", folder / "model")
    flags = ["--backend", "transformers", "--max-model-len", "96", "--threads", "1", "--served-model-name", "bloom"]
    served = serve(folder / "model", folder, *flags, "--chat-template", "chatml")
    yield served
    assert served.stop() == 0


def test_both_dialects_give_the_same_text(bloom: Served) -> None:
    generated = httpx.post(f"{bloom.url}/generate", json={"inputs": "abc", "parameters": GREEDY}, timeout=WAIT_S).json()
    with openai.OpenAI(base_url=f"{bloom.url}/v1", api_key="none", timeout=WAIT_S) as client:
        completion = client.completions.create(model="bloom", prompt="abc", max_tokens=6, temperature=0, logprobs=1)
        chunks = list(client.completions.create(model="bloom", prompt="abc", max_tokens=6, temperature=0, stream=True))

    choice = completion.choices[0]
    assert choice.text == generated["generated_text"] == "".join(chunk.choices[0].text for chunk in chunks)
    assert choice.finish_reason == generated["details"]["finish_reason"] == "length"
    assert [token["logprob"] for token in generated["details"]["tokens"]] == pytest.approx(
        choice.logprobs.token_logprobs, abs=1e-4
    )


def test_tokens_are_streamed_one_event_each(bloom: Served) -> None:
    with httpx.stream(
        "POST", f"{bloom.url}/generate_stream", json={"inputs": "abc", "parameters": GREEDY}, timeout=WAIT_S
    ) as response:
        events = [json.loads(line.removeprefix("data:")) for line in response.iter_lines() if line]
    assert len(events) == 6
    assert events[-1]["generated_text"] is not None


def test_chat_and_errors_are_those_of_the_dialect(bloom: Served) -> None:
    with openai.OpenAI(base_url=f"{bloom.url}/v1", api_key="none", timeout=WAIT_S) as client:
        chat = client.chat.completions.create(
            model="bloom", messages=[{"role": "user", "content": "hi"}], max_tokens=4, n=2, temperature=1.0
        )
        assert len(chat.choices) == 2
        with pytest.raises(openai.BadRequestError, match="maximum context length is 95"):
            client.completions.create(model="bloom", prompt="word " * 200, max_tokens=6)


def test_the_info_names_the_backend(bloom: Served) -> None:
    info = httpx.get(f"{bloom.url}/info", timeout=WAIT_S).json()
    assert "transformers" in json.dumps(info)
