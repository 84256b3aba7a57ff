"""Count how often the first answer is right, or repeats itself, by weight format and sampling. See README.md."""

import asyncio
import json
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean

from headrace.core.generation import (
    ChatPrompt,
    FinishReason,
    GenerationRequest,
    RepetitionDetection,
    SamplingParams,
)
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.serving.settings.server_settings import ServerSettings

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is started by its path, too

from benchmarks.harness import results
from benchmarks.harness.engines import answer, running_engine


@dataclass(frozen=True)
class Question:
    """A question and what a right answer says."""

    text: str
    right: str
    """A regular expression, matched anywhere in the answer in any case."""


QUESTIONS = {
    "short": Question("What is the capital of France?", "Paris"),
    "known for": Question("What is the capital of France, and what is it known for?", "Paris"),
    "sky": Question("Why is the sky blue?", "scatter"),
    "water wheel": Question("Explain how a water wheel works.", "water.*(turn|rotat|spin)"),
    "planets": Question("Name the planets of the solar system.", "Mercury.*Venus.*Mars.*Jupiter.*Saturn"),
    "seasons": Question("Why do we have seasons?", "tilt|axis"),
    "joke": Question("Tell me a joke.", r"\w"),
    "rain": Question("How does rain form?", "condens|vapou?r"),
    "bread": Question("How do I bake bread?", "flour"),
    "plants": Question("How do plants make their food?", "photosynthesis"),
    "five tips": Question("Give me five tips for better sleep.", "sleep"),
    "sleep": Question("Give me three tips for better sleep.", "sleep"),
}
SAMPLING = {
    "greedy": SamplingParams(),
    "0.2 / 0.9": SamplingParams(temperature=0.2, top_p=0.9),
    "0.3 / 0.95": SamplingParams(temperature=0.3, top_p=0.95),
    "0.2 / 0.9 / 1.05": SamplingParams(temperature=0.2, top_p=0.9, repetition_penalty=1.05),
    "0.2 / 0.9 / 1.1": SamplingParams(temperature=0.2, top_p=0.9, repetition_penalty=1.1),
    "0.2 / 0.9 / 1.2": SamplingParams(temperature=0.2, top_p=0.9, repetition_penalty=1.2),
    "1.0 / 1.0": SamplingParams(temperature=1.0),
}
"""By temperature / top_p / repetition_penalty."""
FORMATS = ("auto", "bf16", "w8a16", "w8a8", "w4a16", "w4a8")


@dataclass(frozen=True)
class Count:
    """Right answers of one format to one question with one way of sampling."""

    asked_dtype: str
    dtype: str
    kv_dtype: str
    question: str
    sampling: str
    num_right: int
    num_loops: int
    """Answers that repetition detection ended."""
    num_answers: int
    mean_tokens: float
    first_wrong: str | None


def main() -> None:
    arguments = parse_arguments()
    counts = [count for dtype in arguments.formats for count in asyncio.run(measure(dtype, arguments))]
    print(table(counts, arguments.sampling))
    if arguments.output is not None:
        arguments.output.write_text(json.dumps([asdict(count) for count in counts], indent=1, ensure_ascii=False))


def parse_arguments() -> Namespace:
    parser = results.make_parser(__doc__)
    parser.add_argument("model", nargs="?", default="smollm2", help="alias, folder, GGUF file or Hub id")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS, metavar="DTYPE")
    parser.add_argument("--kv-dtype", default="auto", choices=("auto", "bf16", "int8"))
    parser.add_argument("--isa", help="kernels to use; by default the best that this CPU can run")
    parser.add_argument("--questions", nargs="+", default=tuple(QUESTIONS), choices=QUESTIONS, metavar="QUESTION")
    parser.add_argument("--sampling", nargs="+", default=tuple(SAMPLING), choices=SAMPLING, metavar="SAMPLING")
    parser.add_argument("--max-new-tokens", type=int, default=512)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--output", type=Path, help="write the counts to this JSON file")
    return parser.parse_args()


async def measure(dtype: str, arguments: Namespace) -> list[Count]:
    settings = ServerSettings(
        model=arguments.model,
        dtype=dtype,
        kv_dtype=arguments.kv_dtype,
        max_model_len=arguments.max_new_tokens + 128,
        isa=arguments.isa,
    )
    async with running_engine(settings) as engine:
        return [
            await count_right(engine, dtype, question, sampling, arguments)
            for question in arguments.questions
            for sampling in arguments.sampling
        ]


async def count_right(engine: AsyncEngine, dtype: str, question: str, sampling: str, arguments: Namespace) -> Count:
    params = replace(
        SAMPLING[sampling], max_new_tokens=arguments.max_new_tokens, repetition_detection=RepetitionDetection()
    )
    wanted = requests(QUESTIONS[question].text, params, arguments.seeds)
    answers = await asyncio.gather(*(answer(engine, request) for request in wanted))
    right = re.compile(QUESTIONS[question].right, re.IGNORECASE | re.DOTALL)
    wrong = [found.text for found in answers if not right.search(found.text)]
    ends = [found.finish for found in answers]
    return Count(
        asked_dtype=dtype,
        dtype=engine.info.dtype,
        kv_dtype=engine.info.kv_dtype,
        question=question,
        sampling=sampling,
        num_right=len(answers) - len(wrong),
        num_loops=sum(finish.reason is FinishReason.REPETITION for finish in ends),
        num_answers=len(answers),
        mean_tokens=mean(finish.output_tokens for finish in ends),
        first_wrong=wrong[0] if wrong else None,
    )


def requests(question: str, params: SamplingParams, num_seeds: int) -> Iterator[GenerationRequest]:
    prompt = ChatPrompt(messages=[{"role": "user", "content": question}])
    for seed in range(num_seeds if params.temperature else 1):
        yield GenerationRequest(request_id=f"seed-{seed}", prompt=prompt, sampling=replace(params, seed=seed))


def table(counts: list[Count], samplings: list[str]) -> str:
    rows = []
    for start in range(0, len(counts), len(samplings)):
        first, *_ = row = counts[start : start + len(samplings)]
        dtype = f"{first.dtype} (auto)" if first.asked_dtype == "auto" else first.dtype
        rows.append([first.question, dtype, first.kv_dtype, *map(cell, row)])
    return results.table(["question", "weights", "KV", *samplings], rows, text_columns=3)


def cell(count: Count) -> str:
    loops = f", {count.num_loops} loops" if count.num_loops else ""
    return f"{count.num_right} of {count.num_answers}{loops}"


if __name__ == "__main__":
    main()
