"""
Measure draft tokens from repeats: tokens/s of the whole engine, with `max_draft_tokens` and with 0.

    python benchmarks/speculation/run.py smollm2

No HTTP: requests go to the engine. Both engines live in one process and take turns, case by case and round by round, so
that a slow phase of the machine affects both. Every answer is compared: the two must be equal, token by token.
The last line is one JSON object.
"""

import asyncio
import random
import statistics
import sys
import time
from argparse import Namespace
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from headrace.core.generation import ChatPrompt, GenerationRequest, SamplingParams
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.serving.settings.server_settings import ServerSettings

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is started by its path, too

from benchmarks.harness.engines import answer, print_result, running_engine
from benchmarks.harness.results import make_parser, names, numbers
from benchmarks.harness.turns import in_turns, pair_ratios

TEXT = (
    "The harbour of Veldt lies at the mouth of the river Orre. It was dug in 1643 by order of the merchant Anna "
    "Terlouw, who owned eleven ships and wanted to load them in winter too. The first lock was made of oak and leaked "
    "so badly that the water had to be pumped out by two windmills. In 1781 a flood broke the lock, and the city built "
    "a new one of stone, forty metres long and nine metres wide. Today some three hundred boats lie in the harbour, "
    "most of them sailing boats, and every June the city holds a race from the lock to the lighthouse and back."
)
CODE = """\
def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)

def variance(values):
    middle = mean(values)
    total = 0
    for value in values:
        total += (value - middle) ** 2
    return total / len(values)
"""
QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Explain to a child why the sky is blue.",
    "Give me three tips for sleeping better.",
    "Write a short story about a fox who learns to swim.",
    "What is the difference between a virus and a bacterium?",
    "How do I make a simple tomato sauce?",
    "Why did the Roman Empire fall?",
    "Write an email that declines a meeting politely.",
)


@dataclass(frozen=True)
class Workload:
    """A kind of requests."""

    name: str
    temperature: float = 0.0

    def request(self, index: int, new_tokens: int) -> GenerationRequest:
        """Return request `index`; no two are alike."""
        seed = index if self.temperature else None
        params = SamplingParams(
            max_new_tokens=new_tokens,
            temperature=self.temperature,
            top_p=0.95,
            seed=seed,
            ignore_eos=self.name == "random",
        )
        return GenerationRequest(request_id=f"{self.name}-{index}", prompt=self._prompt(index), sampling=params)

    def _prompt(self, index: int) -> ChatPrompt | tuple[int, ...]:
        if self.name == "random":
            rng = random.Random(index)
            return tuple(rng.randrange(1000, 49_000) for _ in range(128))
        ask = {
            "chat": QUESTIONS[index % len(QUESTIONS)],
            "quote": f"Copy this text word for word.\n\n{TEXT}",
            "summary": f"Summarise this text in three sentences.\n\n{TEXT}",
            "code": f"Rename `values` to `numbers` in this code and print all of it.\n\n```python\n{CODE}```",
        }[self.name]
        return ChatPrompt(messages=[{"role": "user", "content": f"{ask}\n(Request {index}.)"}])


@dataclass(frozen=True)
class Run:
    """One round of one case on one engine."""

    seconds: float
    answers: list[list[int]]
    drafted: int
    accepted: int

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.answers))


async def run_once(engine: AsyncEngine, requests: list[GenerationRequest]) -> Run:
    """Send all requests at once and wait for the last token."""
    before, start = engine.stats(), time.perf_counter()
    answers = await asyncio.gather(*(answer(engine, request) for request in requests))
    seconds, after = time.perf_counter() - start, engine.stats()
    return Run(
        seconds,
        [found.tokens for found in answers],
        after.drafted_tokens_total - before.drafted_tokens_total,
        after.accepted_tokens_total - before.accepted_tokens_total,
    )


async def compare(
    engines: dict[str, AsyncEngine], workload: Workload, batch: int, arguments: Namespace
) -> dict[str, object]:
    """Run rounds of one case, the engines in turns."""
    runs: dict[str, list[Run]] = {name: [] for name in engines}
    for number, name in in_turns(list(engines), arguments.rounds):
        requests = [workload.request(number * batch + i, arguments.new_tokens) for i in range(batch)]
        salted = [replace(request, cache_salt=f"{workload}-{batch}-{number}") for request in requests]
        runs[name].append(await run_once(engines[name], salted))
    if [run.answers for run in runs["on"]] != [run.answers for run in runs["off"]]:
        raise SystemExit(f"{workload} x {batch}: the answers differ.")
    speed = {name: [run.num_tokens / run.seconds for run in rounds] for name, rounds in runs.items()}
    drafted, accepted = sum(run.drafted for run in runs["on"]), sum(run.accepted for run in runs["on"])
    tokens = sum(run.num_tokens for run in runs["on"])
    result = {
        "workload": workload.name,
        "temperature": workload.temperature,
        "batch": batch,
        "off_tokens_per_s": [round(x, 1) for x in speed["off"]],
        "on_tokens_per_s": [round(x, 1) for x in speed["on"]],
        **pair_ratios(speed["on"], speed["off"]),
        "drafted_per_token": round(drafted / tokens, 3),
        "acceptance": round(accepted / drafted, 3) if drafted else None,
    }
    print(
        f"{workload.name:8} t={workload.temperature:g} n={batch:<3} off {statistics.median(speed['off']):8.1f} tok/s  "
        f"on {statistics.median(speed['on']):8.1f} tok/s  ratio {result['ratio_median']:.3f}  "
        f"drafted/token {result['drafted_per_token']:.2f}  accepted {result['acceptance']}",
        flush=True,
    )
    return result


async def measure(arguments: Namespace) -> None:
    settings = ServerSettings(
        model=arguments.model,
        dtype=arguments.dtype,
        max_model_len=1024,
        kv_cache_bytes=1 << 30,
        max_num_seqs=max(arguments.batches),
    )
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(running_engine(replace(settings, max_draft_tokens=most)))
            for name, most in (("off", 0), ("on", arguments.max_draft_tokens))
        }
        grid = product(arguments.workloads, arguments.temperatures, arguments.batches)
        cases = [
            await compare(engines, Workload(name, temperature), batch, arguments) for name, temperature, batch in grid
        ]
    print_result(engines["on"], arguments, kv_dtype=engines["on"].info.kv_dtype, cases=cases)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="w8a8")
    parser.add_argument("--workloads", type=names, default=["random", "chat", "summary", "quote", "code"])
    parser.add_argument("--temperatures", type=lambda text: [float(part) for part in text.split(",")], default=[0.0])
    parser.add_argument("--batches", type=numbers, default=[1, 8, 64])
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-draft-tokens", type=int, default=8)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
