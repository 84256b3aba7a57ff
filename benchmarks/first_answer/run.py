"""Count how often the first answer that a user sees names Paris, by weight format and sampling. See README.md."""

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from headrace.core.generation import ChatPrompt, Chunk, GenerationRequest, SamplingParams
from headrace.engine.service.async_engine import AsyncEngine
from headrace.server.engine_config import load_engine
from headrace.settings.server_settings import ServerSettings

QUESTIONS = {
    "short": "What is the capital of France?",
    "chat page, demo": "What is the capital of France, and what is it known for?",
}
EXPECTED = "Paris"
SAMPLING = {
    "greedy": SamplingParams(max_new_tokens=96),
    "0.2 / 0.9": SamplingParams(max_new_tokens=96, temperature=0.2, top_p=0.9),
    "0.3 / 0.95": SamplingParams(max_new_tokens=96, temperature=0.3, top_p=0.95),
    "1.0 / 1.0": SamplingParams(max_new_tokens=96, temperature=1.0),
}
"""By temperature / top_p."""
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
    num_answers: int
    first_wrong: str | None


def main() -> None:
    arguments = parse_arguments()
    counts = [count for dtype in arguments.formats for count in asyncio.run(measure(dtype, arguments))]
    print(table(counts))
    if arguments.output is not None:
        arguments.output.write_text(json.dumps([asdict(count) for count in counts], indent=1, ensure_ascii=False))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2", help="alias, folder, GGUF file or Hub id")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS, metavar="DTYPE")
    parser.add_argument("--kv-dtype", default="auto", choices=("auto", "bf16", "int8"))
    parser.add_argument("--isa", help="kernels to use; by default the best that this CPU can run")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--output", type=Path, help="write the counts to this JSON file")
    return parser.parse_args()


async def measure(dtype: str, arguments: argparse.Namespace) -> list[Count]:
    settings = ServerSettings(
        model=arguments.model, dtype=dtype, kv_dtype=arguments.kv_dtype, max_model_len=512, isa=arguments.isa
    )
    engine = load_engine(settings)
    try:
        await engine.start()
        return [
            await count_right(engine, dtype, question, sampling, arguments.seeds)
            for question in QUESTIONS
            for sampling in SAMPLING
        ]
    finally:
        await engine.close(deadline_s=0)


async def count_right(engine: AsyncEngine, dtype: str, question: str, sampling: str, num_seeds: int) -> Count:
    answers = await asyncio.gather(*(answer(engine, request) for request in requests(question, sampling, num_seeds)))
    wrong = [text for text in answers if EXPECTED not in text]
    return Count(
        asked_dtype=dtype,
        dtype=engine.info.dtype,
        kv_dtype=engine.info.kv_dtype,
        question=question,
        sampling=sampling,
        num_right=len(answers) - len(wrong),
        num_answers=len(answers),
        first_wrong=wrong[0] if wrong else None,
    )


def requests(question: str, sampling: str, num_seeds: int) -> Iterator[GenerationRequest]:
    prompt = ChatPrompt(messages=[{"role": "user", "content": QUESTIONS[question]}])
    params = SAMPLING[sampling]
    for seed in range(num_seeds if params.temperature else 1):
        yield GenerationRequest(request_id=f"seed-{seed}", prompt=prompt, sampling=replace(params, seed=seed))


async def answer(engine: AsyncEngine, request: GenerationRequest) -> str:
    chunks = cast("AsyncGenerator[Chunk, None]", engine.generate(request))
    async with aclosing(chunks):
        return "".join([chunk.text async for chunk in chunks])


def table(counts: list[Count]) -> str:
    lines = [
        "| question | weights | KV | " + " | ".join(SAMPLING) + " |",
        "|---|---|---" + "|---:" * len(SAMPLING) + "|",
    ]
    for start in range(0, len(counts), len(SAMPLING)):
        row = counts[start : start + len(SAMPLING)]
        dtype = f"{row[0].dtype} (auto)" if row[0].asked_dtype == "auto" else row[0].dtype
        cells = " | ".join(f"{count.num_right} of {count.num_answers}" for count in row)
        lines.append(f"| {row[0].question} | {dtype} | {row[0].kv_dtype} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
