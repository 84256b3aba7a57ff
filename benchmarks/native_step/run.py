"""
Time one step of the native runtime: no HTTP, no tokenizer, no scheduler.

    python benchmarks/native_step/run.py smollm2 --formats bf16/bf16,w8a8/int8,w4a8/int8
    python benchmarks/native_step/run.py smollm2 --profile

Decode: B sequences of 128 + i tokens, i up to `--decode-steps`, on scattered blocks, greedy. Prefill: one prompt in one
chunk. Formats take turns, so that a slow phase of the machine affects all of them; the best and the median of all
steps are printed. The last line is one JSON object.
"""

import json
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headrace import _native
from headrace.inference.models.loading import load_model
from headrace.inference.runner.native import NativeRunner
from headrace.inference.runner.step import Int32, StepInput

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is started by its path, too

from benchmarks.harness.results import make_parser, names, numbers
from benchmarks.harness.steps import BLOCK, decode_step, load_runner, prompt_step

CONTEXT = 1024
DECODE_START = 128
BANDWIDTH_BYTES = 256 << 20


def load(weights_and_kv: str, arguments: Namespace) -> NativeRunner:
    """Return one runner; packed weights are kept for this run only unless `--cache-dir` is given."""
    dtype, kv_dtype = weights_and_kv.split("/")
    return load_runner(
        load_model(arguments.model),
        dtype=dtype,
        kv_dtype=kv_dtype,
        max_model_len=CONTEXT,
        max_num_seqs=max(arguments.batches),
        max_num_batched_tokens=CONTEXT,
        threads=arguments.threads,
        isa=arguments.isa,
        cache_dir=arguments.cache_dir,
    )


def block_tables(runner: NativeRunner, batch: int) -> Int32:
    """Return scattered blocks for whole contexts of `batch` sequences."""
    order = np.random.default_rng(batch).permutation(runner.limits.num_blocks).astype(np.int32)
    per_sequence = min(CONTEXT // BLOCK, runner.limits.num_blocks // batch)
    return np.ascontiguousarray(order[: batch * per_sequence].reshape(batch, per_sequence))


def random_tokens(runner: NativeRunner, rng: np.random.Generator, count: int) -> Int32:
    return rng.integers(0, runner.spec.vocab_size, count).astype(np.int32)


def write_contexts(runner: NativeRunner, batch: int, num_tokens: int) -> None:
    """
    Put real keys and values where `decode_steps` reads them.

    Unwritten memory is one shared page of zeros, which costs nothing to read.
    """
    rng = np.random.default_rng(batch)
    for index, table in enumerate(block_tables(runner, batch)):
        slots = state_slots(runner, batch)[index : index + 1]
        runner.execute(prompt_step(random_tokens(runner, rng, num_tokens), table, rows=(), state_slots=slots))


def state_slots(runner: NativeRunner, batch: int) -> range:
    """Return the state slots of the sequences, none for a model without state layers."""
    return range(batch) if runner.spec.has_state else range(0)


def decode_steps(runner: NativeRunner, batch: int, num_steps: int) -> Iterator[StepInput]:
    """Return steps of `batch` sequences whose context grows."""
    rng = np.random.default_rng(batch)
    tables = block_tables(runner, batch)
    for i in range(num_steps):
        tokens = random_tokens(runner, rng, batch)
        yield decode_step(tokens, tables, DECODE_START + i, state_slots=state_slots(runner, batch))


def prefill_step(runner: NativeRunner, num_tokens: int) -> StepInput:
    rng = np.random.default_rng(num_tokens)
    table = rng.permutation(runner.limits.num_blocks).astype(np.int32)[: CONTEXT // BLOCK]
    return prompt_step(random_tokens(runner, rng, num_tokens), table, state_slots=state_slots(runner, 1))


def timed(runner: NativeRunner, step: StepInput) -> float:
    start = time.perf_counter()
    runner.execute(step)
    return (time.perf_counter() - start) * 1e3


def read_bandwidth(memory: _native.Arena, runner: NativeRunner) -> float:
    """Return bytes per second, one reading."""
    facts = runner.info.facts
    return _native.read_bandwidth(memory, isa=str(facts["isa"]), num_threads=int(str(facts["threads"])))


def measure_bandwidth(runners: dict[str, NativeRunner], arguments: Namespace) -> dict[str, dict[str, float]]:
    """Return the medians of steps of one sequence, and of the bandwidth beside them, by format."""
    memory = _native.Arena(BANDWIDTH_BYTES)
    memory.view()[:] = 1
    found = {}
    for name, runner in runners.items():
        readings, milliseconds = [], []
        for step in decode_steps(runner, 1, arguments.decode_steps):
            readings.append(read_bandwidth(memory, runner))
            milliseconds.append(timed(runner, step))
        found[name] = {
            "read_bytes_per_s": statistics.median(readings),
            "tokens_per_s": 1e3 / statistics.median(milliseconds),
        }
    return found


def measure(runners: dict[str, NativeRunner], arguments: Namespace) -> dict[str, dict[str, list[float]]]:
    """Return the milliseconds of every step, by format and case."""
    times: dict[str, dict[str, list[float]]] = {name: {} for name in runners}
    for runner in runners.values():
        for batch in arguments.batches:
            write_contexts(runner, batch, DECODE_START + arguments.decode_steps)
    for _ in range(arguments.rounds):
        for batch in arguments.batches:
            for name, runner in runners.items():
                steps = list(decode_steps(runner, batch, arguments.decode_steps))
                times[name].setdefault(f"decode {batch}", []).extend(timed(runner, step) for step in steps)
        for num_tokens in arguments.prefills:
            for name, runner in runners.items():
                step = prefill_step(runner, num_tokens)
                times[name].setdefault(f"prefill {num_tokens}", []).extend(
                    timed(runner, step) for _ in range(arguments.prefill_steps)
                )
    return times


def profile(runner: NativeRunner, steps: list[StepInput]) -> dict[str, float]:
    """Return the milliseconds of a step by phase, the mean of all threads; the rest is `outside`."""
    for step in steps:
        runner.execute(step)
    runner.start_profile()
    total = sum(timed(runner, step) for step in steps) / len(steps)
    threads = runner.profile()
    phases = {name: sum(part[name] for part in threads) * 1e3 / len(threads) / len(steps) for name in threads[0]}
    return {"step": total, **phases, "outside": total - sum(phases.values())}


def print_profiles(runners: dict[str, NativeRunner], arguments: Namespace) -> None:
    """Print a table for each format: phases down, cases across."""
    for name, runner in runners.items():
        for batch in arguments.batches:
            write_contexts(runner, batch, DECODE_START + arguments.decode_steps)
        cases = {f"B={batch}": list(decode_steps(runner, batch, arguments.decode_steps)) for batch in arguments.batches}
        cases |= {f"T={tokens}": [prefill_step(runner, tokens)] * 3 for tokens in arguments.prefills}
        columns = {case: profile(runner, steps) for case, steps in cases.items()}
        print(f"\n{name:12}" + "".join(f"{case:>10}" for case in columns))
        for phase in next(iter(columns.values())):
            print(f"{phase:12}" + "".join(f"{column[phase]:10.3f}" for column in columns.values()))


def report(times: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, dict[str, float]]]:
    result: dict[str, dict[str, dict[str, float]]] = {}
    for name, cases in times.items():
        for case, milliseconds in cases.items():
            tokens = int(case.split()[1])
            best, median = min(milliseconds), statistics.median(milliseconds)
            result.setdefault(name, {})[case] = {
                "best_ms": best,
                "median_ms": median,
                "tokens_per_s": tokens / median * 1e3,
            }
            print(
                f"{name:12} {case:12} best {best:8.2f} ms  median {median:8.2f} ms  "
                f"{tokens / median * 1e3:8.0f} tok/s (best {tokens / best * 1e3:.0f})"
            )
    return result


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model")
    formats = ["bf16/bf16", "w8a8/int8", "w4a8/int8"]
    parser.add_argument("--formats", type=names, default=formats, help="weights/KV cache, ...")
    parser.add_argument("--batches", type=numbers, default=[1, 8, 64])
    parser.add_argument("--prefills", type=numbers, default=[512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decode-steps", type=int, default=64)
    parser.add_argument("--prefill-steps", type=int, default=3, help="of a round")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--bandwidth", action="store_true", help="read memory beside more steps of one sequence")
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    parser.add_argument("--isa")
    parser.add_argument("--cache-dir", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments.cache_dir = arguments.cache_dir or Path(folder)
        runners = {name: load(name, arguments) for name in arguments.formats}
    if arguments.profile:
        print_profiles(runners, arguments)
        return
    facts = {name: runner.info.facts for name, runner in runners.items()}
    result = {"model": arguments.model, "runners": facts, "cases": report(measure(runners, arguments))}
    if arguments.bandwidth:
        result["bandwidth"] = measure_bandwidth(runners, arguments)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
