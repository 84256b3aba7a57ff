"""
Answer forty realistic schemas with a real model; print every answer that is not valid, closed and ended.

    python -m benchmarks.grammar.validity smollm2

Each schema is answered greedily and with `--seeds` seeds at `--temperature`, all through one engine, 32 at a time.
The exit status is 1 if an answer is wrong; the last line is one JSON object.
"""

import asyncio
import json
import time
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass

from benchmarks.harness.engines import answer, print_result, running_engine
from benchmarks.harness.results import make_parser
from tests.schemas import SCHEMAS, problem

from headrace.core.generation import ChatPrompt, FinishReason, GenerationRequest, Grammar, SamplingParams
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.serving.settings.server_settings import ServerSettings

NUM_STREAMS = 32


@dataclass(frozen=True)
class Result:
    """One answer, and its defect if it has one."""

    name: str
    seed: int | None
    text: str
    num_tokens: int
    problem: str | None


def make_request(name: str, seed: int | None, arguments: Namespace) -> GenerationRequest:
    """Return the request for one answer to a schema; greedy without a seed."""
    params = SamplingParams(
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature if seed is not None else 0.0,
        seed=seed,
        grammar=Grammar("json_schema", json.dumps(SCHEMAS[name])),
    )
    messages = [{"role": "user", "content": f"Give one short example of: {name}. Answer in JSON."}]
    return GenerationRequest(request_id=f"{name}-{seed}", prompt=ChatPrompt(messages=messages), sampling=params)


async def check_all(engine: AsyncEngine, arguments: Namespace) -> list[Result]:
    """Answer every schema greedily and with each seed, and check the answers."""
    slots = asyncio.Semaphore(NUM_STREAMS)

    async def check(name: str, seed: int | None) -> Result:
        async with slots:
            found = await answer(engine, make_request(name, seed, arguments))
        finish = found.finish
        is_ended = finish.reason is FinishReason.EOS
        wrong = problem(SCHEMAS[name], found.text) if is_ended else f"ended by {finish.reason} {finish.message or ''}"
        return Result(name, seed, found.text, finish.output_tokens, wrong)

    seeds = (None, *range(arguments.seeds))
    return list(await asyncio.gather(*(check(name, seed) for seed in seeds for name in SCHEMAS)))


async def measure(arguments: Namespace) -> int:
    """Run everything, print the wrong answers, return their number."""
    settings = ServerSettings(
        model=arguments.model,
        dtype=arguments.dtype,
        max_model_len=1024,
        kv_cache_bytes=1 << 29,
        max_num_seqs=NUM_STREAMS,
    )
    async with running_engine(settings) as engine:
        started_s = time.perf_counter()
        results = await check_all(engine, arguments)
        seconds = time.perf_counter() - started_s
    wrong = [result for result in results if result.problem is not None]
    for result in wrong:
        print(f"{result.name}, seed {result.seed}: {result.problem}\n    {result.text[:300]!r}")
    print(f"{len(results) - len(wrong)} of {len(results)} answers are valid, closed and ended, in {seconds:.0f} s")
    print_result(
        engine,
        arguments,
        answers=len(results),
        wrong=dict(Counter(result.name for result in wrong)),
        longest_tokens=max(result.num_tokens for result in results),
        tokens=sum(result.num_tokens for result in results),
        seconds=round(seconds, 1),
    )
    return len(wrong)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="w8a8")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-new-tokens", type=int, default=400)
    raise SystemExit(asyncio.run(measure(parser.parse_args())) > 0)


if __name__ == "__main__":
    main()
