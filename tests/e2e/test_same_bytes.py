"""The promise of batch invariance, through HTTP on the real model: who else is there never changes an answer."""

import asyncio
import json
import random
from pathlib import Path

import httpx
import pytest

from tests import plain_http
from tests.waiting import WAIT_S

from .conftest import Served, serve

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
    prefix = "You are a careful writer. " * 20
    made: list[dict[str, object]] = []
    for number in range(count):
        words = " ".join(chooser.choices(SUBJECTS, k=chooser.randint(1, 60)))
        prompt = f"{prefix if number % 4 == 0 else ''}Write about {words} in {number} words:"
        made.append({"model": "smollm2", "prompt": prompt, "max_tokens": chooser.randint(4, 48), "temperature": 0})
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


async def answers(url: str, bodies: list[dict[str, object]], *, together: bool, stream: bool) -> list[str]:
    limits = httpx.Limits(max_connections=None)
    ask = streamed if stream else whole
    async with plain_http.AsyncClient(base_url=url, timeout=WAIT_S, limits=limits) as client:
        if together:
            return list(await asyncio.gather(*(ask(client, body) for body in bodies)))
        return [await ask(client, body) for body in bodies]


async def test_64_streams_give_the_same_bytes_as_each_request_alone(server: Served) -> None:
    bodies = requests(64)

    alone = await answers(server.url, bodies, together=False, stream=False)
    together_streamed = await answers(server.url, bodies, together=True, stream=True)
    together_whole = await answers(server.url, bodies, together=True, stream=False)

    assert together_streamed == alone
    assert together_whole == alone


MAX_ROUNDS = 6
"""On a busy machine the ten may arrive so far apart that none is preempted: then they are sent again."""


# The engine's own tests have the other formats.
@pytest.mark.parametrize(("dtype", "kv_mib"), [("auto", 25), ("w8a8", 13)])
async def test_neither_prefix_cache_nor_preemption_changes_an_answer(
    dtype: str, kv_mib: int, smollm2_path: Path, tmp_path: Path
) -> None:
    bodies = [{**body, "max_tokens": 120, "ignore_eos": True} for body in requests(10)]
    plain = ["--dtype", dtype, "--served-model-name", "smollm2", "--max-model-len", "1024"]
    roomy = serve(smollm2_path, tmp_path, *plain, "--no-enable-prefix-caching")
    try:
        expected = await answers(roomy.url, bodies, together=False, stream=False)
    finally:
        roomy.stop()
    # Some 1,100 tokens of KV cache: the ten grow out of it together, so some are put back and computed again.
    # Short answers first: they teach the engine to expect such, so that it lets all ten in, however they arrive.
    short = [{**body, "max_tokens": 2} for body in bodies] * 4
    tight = serve(smollm2_path, tmp_path, *plain, "--kv-cache-bytes", f"{kv_mib}MiB")
    try:
        metrics = ""
        for number in range(MAX_ROUNDS):
            await answers(tight.url, short, together=False, stream=False)
            assert await answers(tight.url, bodies, together=True, stream=True) == expected
            metrics = plain_http.get(f"{tight.url}/metrics", timeout=WAIT_S).text
            if number and counter(metrics, "headrace_preemptions_total"):  # after the first, prompts are cached
                break
    finally:
        tight.stop()

    assert counter(metrics, "headrace_cached_prompt_tokens_total") > 0
    assert counter(metrics, "headrace_preemptions_total") > 0


def counter(metrics: str, name: str) -> float:
    """Sum of a metric over its labels."""
    lines = [line for line in metrics.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    assert lines, f"{name} is not among the metrics"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
