"""The engine's part of the settings: one resolution of what a request may ask for."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace

import httpx
import pytest

from headrace.inference.engine.config import EngineConfig, ModelSource, fit_to_runner
from headrace.inference.models.chat import ChatTemplate
from headrace.serving.server.app import create_app
from headrace.serving.server.engine_config import engine_config, request_limits
from headrace.serving.settings.server_settings import ServerSettings
from tests.inference.engine.support import EOS, LIMITS, make_engine, runner_limits, running

DERIVED = {"max_waiting_seqs": "max_concurrent_requests", "request_limits": "max_best_of", "backend_reason": "backend"}
"""Fields of the engine's configuration that have another name than the setting behind them."""
FIVE_ALTERNATIVES = ServerSettings(model="fake", dialect="tgi-3", max_top_n_tokens=5)
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "logprobs": True}


@asynccontextmanager
async def server_with_an_engine() -> AsyncIterator[httpx.AsyncClient]:
    """A server on a real engine that gives five alternatives a token."""
    limits = replace(LIMITS, request=request_limits(FIVE_ALTERNATIVES))
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    async with running(make_engine(limits=limits, chat_template=template, bias={EOS: -100.0})) as engine:
        transport = httpx.ASGITransport(create_app(FIVE_ALTERNATIVES, engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


@pytest.mark.parametrize("name", [field.name for kind in (ModelSource, EngineConfig) for field in fields(kind)])
def test_each_field_of_the_engines_configuration_comes_from_a_setting(name):
    assert DERIVED.get(name, name) in {field.name for field in fields(ServerSettings)}


def test_dialects_and_engine_have_the_same_limits():
    settings = ServerSettings(model="m", max_best_of=3, max_stop_sequences=5, max_top_n_tokens=7)

    assert engine_config(settings).request_limits == request_limits(settings)
    assert request_limits(settings).max_top_n_tokens == 7


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {**CHAT, "top_logprobs": 20}, "top_logprobs"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 2, "logprobs": 20}, "logprobs"),
        ("/generate", {"inputs": "a", "parameters": {"top_n_tokens": 20, "details": True}}, "top_n_tokens"),
    ],
)
async def test_too_many_alternatives_are_refused_by_the_name_that_the_client_sent(path, body, param):
    async with server_with_an_engine() as client:
        answer = await client.post(path, json=body)

    assert answer.status_code in {400, 422}
    assert param in answer.text
    assert re.search(r"\b5\b", answer.text)


async def test_as_many_alternatives_as_are_allowed_come_back():
    async with server_with_an_engine() as client:
        answer = await client.post("/v1/chat/completions", json={**CHAT, "top_logprobs": 5, "seed": 1})

    (choice,) = answer.json()["choices"]
    assert [len(token["top_logprobs"]) for token in choice["logprobs"]["content"]] == [5, 5]


@pytest.mark.parametrize(
    ("runner", "expected"),
    [
        ({"num_blocks": 4, "block_tokens": 16}, {"max_model_len": 64, "max_prompt_tokens": 63}),
        ({"max_context_tokens": 300}, {"max_model_len": 300, "max_prompt_tokens": 299}),
        ({"max_step_sequences": 8}, {"max_num_seqs": 8}),
        ({"max_step_rows": 6}, {"max_num_seqs": 6}),
        ({"max_step_tokens": 32}, {"max_num_seqs": 32, "max_num_batched_tokens": 32}),
    ],
)
def test_no_limit_is_above_what_the_runner_holds(runner, expected):
    assert fit_to_runner(LIMITS, runner_limits(**runner)) == replace(LIMITS, **expected)
