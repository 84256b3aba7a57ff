"""
The promise of batch invariance, through HTTP on the real model: who else is there never changes an answer.

Proves that a server as users start it keeps the promise: streams and whole answers, default settings. Preemption and
the other formats lie below HTTP: `tests/inference/engine/test_native_bytes.py`,
`tests/inference/engine/test_real_model.py`.
"""

import asyncio
import json
import random

import httpx
import pytest

from tests import plain_http
from tests.waiting import WAIT_S

from .conftest import Served

pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

SUBJECTS = (
    "the sea",
    "a fox",
    "日本の山",
    "emoji 🙂🚀",
    "Python code",
    "a recipe for bread",
    "the year 1848",
    "primes",
)


def requests(count: int) -> list[dict[str, object]]:
    """Greedy requests of mixed prompt and answer lengths; every fourth shares a long prefix."""
    chooser = random.Random(7)
    prefix = "You are a careful writer. " * 10
    made: list[dict[str, object]] = []
    for number in range(count):
        words = " ".join(chooser.choices(SUBJECTS, k=chooser.randint(1, 30)))
        prompt = f"{prefix if number % 4 == 0 else ''}Write about {words} in {number} words:"
        made.append({"model": "smollm2", "prompt": prompt, "max_tokens": chooser.randint(4, 20), "temperature": 0})
    return made


async def whole(client: httpx.AsyncClient, body: dict[str, object]) -> str:
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


async def streamed(client: httpx.AsyncClient, body: dict[str, object]) -> str:
    text = ""
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
    return text


async def test_64_requests_together_give_the_same_bytes_as_each_alone(server: Served) -> None:
    """Half of those together are streamed."""
    bodies = requests(64)
    limits = httpx.Limits(max_connections=None)
    async with plain_http.AsyncClient(base_url=server.url, timeout=WAIT_S, limits=limits) as client:
        alone = [await whole(client, body) for body in bodies]
        cached_before = counter((await client.get("/metrics")).text, "headrace_cached_prompt_tokens_total")
        asked = [(streamed if number % 2 else whole)(client, body) for number, body in enumerate(bodies)]
        together = await asyncio.gather(*asked)
        cached_after = counter((await client.get("/metrics")).text, "headrace_cached_prompt_tokens_total")

    assert together == alone
    assert cached_after > cached_before


def counter(metrics: str, name: str) -> float:
    """Sum of a metric over its labels."""
    lines = [line for line in metrics.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    assert lines, f"{name} is not among the metrics"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
