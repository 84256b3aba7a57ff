"""
Measure the cost of a JSON schema: tokens/s of the whole engine with and without, and compile times of large ones.

    python -m benchmarks.grammar.run smollm2

No HTTP: requests go to the engine. Both kinds of requests have the same prompts and return the same number of
tokens, on one engine, in turns, so that a slow phase of the machine affects both. The last line is one JSON object.
"""

import asyncio
import json
import statistics
import time
from argparse import Namespace

from benchmarks.harness.engines import answer, print_result, running_engine
from benchmarks.harness.results import make_parser, numbers
from benchmarks.harness.turns import in_turns, pair_ratios

from headrace.core.generation import ChatPrompt, GenerationRequest, Grammar, SamplingParams
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.inference.engine.structured_output.compiler import GrammarCompiler
from headrace.inference.models.loading import load_model
from headrace.inference.models.tokenizer import Tokenizer
from headrace.serving.settings.server_settings import ServerSettings

RECORDS = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "email": {"type": "string", "pattern": "^[a-z.]{3,12}@[a-z]{3,10}[.](com|org)$"},
            "tags": {"type": "array", "items": {"enum": ["new", "paid", "late"]}, "maxItems": 3},
            "note": {"type": "string"},
        },
        "required": ["name", "age", "email", "tags", "note"],
    },
}
"""No answer reaches the end of a hundred records: every one has `--new-tokens` tokens."""
KINDS = ("free", "schema")


def make_request(kind: str, number: int, arguments: Namespace) -> GenerationRequest:
    """Return request `number`; its two kinds differ in the constraint only."""
    params = SamplingParams(
        max_new_tokens=arguments.new_tokens,
        ignore_eos=True,
        temperature=arguments.temperature,
        seed=number if arguments.temperature else None,
        grammar=Grammar("json_schema", json.dumps(RECORDS)) if kind == "schema" else None,
    )
    text = f"Invent ten customers of shop number {number}, with name, age, email, tags and a note, as JSON."
    prompt = ChatPrompt(messages=[{"role": "user", "content": text}])
    return GenerationRequest(
        request_id=f"{kind}-{number}", prompt=prompt, sampling=params, cache_salt=f"{kind}-{number}"
    )


async def tokens_per_s(engine: AsyncEngine, requests: list[GenerationRequest]) -> float:
    """Send all requests at once and wait for the last token."""
    started_s = time.perf_counter()
    answers = await asyncio.gather(*(answer(engine, request) for request in requests))
    counts = [found.finish.output_tokens for found in answers]
    expected = requests[0].sampling.max_new_tokens
    if set(counts) != {expected}:
        raise SystemExit(f"Answers have {sorted(set(counts))} tokens; expected {expected} each.")
    return sum(counts) / (time.perf_counter() - started_s)


async def compare(engine: AsyncEngine, num_streams: int, arguments: Namespace) -> dict[str, object]:
    """Run rounds with one number of streams, the kinds in turns."""
    speeds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number, kind in in_turns(KINDS, arguments.rounds):
        indices = range(number * num_streams, (number + 1) * num_streams)
        requests = [make_request(kind, index, arguments) for index in indices]
        speeds[kind].append(await tokens_per_s(engine, requests))
    compared = pair_ratios(speeds["schema"], speeds["free"])
    print(
        f"{num_streams:3} streams: free {statistics.median(speeds['free']):7.1f} tok/s, schema "
        f"{statistics.median(speeds['schema']):7.1f} tok/s, ratio {compared['ratio_median']:.3f} "
        f"({min(compared['ratios']):.3f} to {max(compared['ratios']):.3f})",
        flush=True,
    )
    return {
        "streams": num_streams,
        **{f"{kind}_tokens_per_s": [round(speed, 1) for speed in speeds[kind]] for kind in KINDS},
        **compared,
    }


async def compile_times(tokenizer: Tokenizer, num_properties: int) -> dict[str, object]:
    """Time the compilation of an object with many properties, new and cached."""
    properties = {
        f"property_{index}": {"type": "string", "maxLength": 40} if index % 2 else {"type": "integer", "minimum": 0}
        for index in range(num_properties)
    }
    new_s, kept_s = [], []
    compiler = GrammarCompiler(tokenizer, vocab_size=tokenizer.vocab_size)
    for attempt in range(5):
        schema = {"title": f"attempt {attempt}", "properties": properties, "required": list(properties)}
        grammar = Grammar("json_schema", json.dumps(schema))
        for times in (new_s, kept_s):
            started_s = time.perf_counter()
            await compiler.compile(grammar)
            times.append(time.perf_counter() - started_s)
    compiler.close()
    new_ms, kept_ms = (round(statistics.median(times) * 1e3, 2) for times in (new_s, kept_s))
    print(f"{num_properties} properties: compiled in {new_ms} ms, kept {kept_ms} ms", flush=True)
    return {"properties": num_properties, "compile_ms": new_ms, "kept_ms": kept_ms}


async def measure(arguments: Namespace) -> None:
    settings = ServerSettings(
        model=arguments.model,
        dtype=arguments.dtype,
        max_model_len=1024,
        kv_cache_bytes=1 << 30,
        max_num_seqs=max(arguments.streams),
        max_draft_tokens=0,
    )
    async with running_engine(settings) as engine:
        tokenizer = load_model(arguments.model).tokenizer
        compiled = [await compile_times(tokenizer, number) for number in (20, 200, 2000)]
        cases = [await compare(engine, number, arguments) for number in arguments.streams]
    print_result(engine, arguments, cases=cases, compilation=compiled)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="w8a8")
    parser.add_argument("--streams", type=numbers, default=[1, 8, 32])
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.0)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
