"""A model that only the transformers backend runs, through the routes of OpenAI and TGI; tests/e2e starts processes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import openai
import pytest

from headrace.serving.server.app import create_app
from headrace.serving.server.engine_config import load_engine
from headrace.serving.settings.server_settings import ServerSettings
from tests.inference.engine.support import running
from tests.inference.runner.transformers.checkpoints import write_network

GREEDY = {"inputs": "abc", "parameters": {"max_new_tokens": 6, "details": True, "do_sample": False}}
URL = "http://127.0.0.1"


@pytest.fixture(scope="module")
def gpt_neo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt-neo")
    write_network("gpt neo", folder)
    return folder


@asynccontextmanager
async def clients(folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, openai.AsyncOpenAI]]:
    """Yield clients of a server with the model."""
    settings = ServerSettings(
        model=str(folder),
        served_model_name="gpt_neo",
        dialect="tgi-3",
        max_model_len=96,
        threads=1,
        chat_template="chatml",
    )
    async with (
        running(load_engine(settings)) as engine,
        httpx.AsyncClient(transport=httpx.ASGITransport(create_app(settings, engine)), base_url=URL) as http,
        openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", http_client=http) as client,
    ):
        yield http, client


async def test_both_dialects_give_the_same_text_whole_and_streamed(gpt_neo: Path) -> None:
    async with clients(gpt_neo) as (http, client):
        generated = (await http.post("/generate", json=GREEDY)).json()
        streamed = await http.post("/generate_stream", json=GREEDY)
        completion = await client.completions.create(
            model="gpt_neo", prompt="abc", max_tokens=6, temperature=0, logprobs=1
        )
        chunks = [
            chunk.choices[0].text
            async for chunk in await client.completions.create(
                model="gpt_neo", prompt="abc", max_tokens=6, temperature=0, stream=True
            )
        ]

    choice = completion.choices[0]
    assert choice.text == generated["generated_text"] == "".join(chunks)
    assert choice.finish_reason == generated["details"]["finish_reason"] == "length"
    assert [token["logprob"] for token in generated["details"]["tokens"]] == pytest.approx(
        choice.logprobs.token_logprobs, abs=1e-4
    )
    events = [json.loads(line.removeprefix("data:")) for line in streamed.text.splitlines() if line]
    assert len(events) == 6
    assert events[-1]["generated_text"] == choice.text


async def test_chat_errors_and_info_are_those_of_the_dialect(gpt_neo: Path) -> None:
    async with clients(gpt_neo) as (http, client):
        chat = await client.chat.completions.create(
            model="gpt_neo", messages=[{"role": "user", "content": "hi"}], max_tokens=4, n=2, temperature=1.0
        )
        assert len(chat.choices) == 2
        with pytest.raises(openai.BadRequestError, match="maximum context length is 95"):
            await client.completions.create(model="gpt_neo", prompt="word " * 200, max_tokens=6)
        info = (await http.get("/info")).json()
    assert info["headrace"]["backend"] == "transformers"
    assert info["headrace"]["backend_reason"] == "native does not run GPTNeoForCausalLM"
