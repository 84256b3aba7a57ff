"""Decode steps of sequences with an adapter each, beside the same steps without: same tokens as alone, and speed."""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from headrace.inference.models.adapter import ADAPTED_PARTS, Adapter, LowRank, is_adaptable
from headrace.inference.models.loading import load_model
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.memory import MemoryBudget, available_memory_bytes
from headrace.inference.runner.native import NativeRunner, load_native_runner
from headrace.inference.runner.packing import layer_formats_of
from headrace.inference.runner.plan import plan_runner
from headrace.inference.runner.sampling import stack_sampling
from headrace.inference.runner.step import Int32, StepInput

CONTEXT = 128
BLOCK = 32
NUM_TOKENS = 24


def random_adapter(spec: ModelSpec, *, rank: int, seed: int, parts: Sequence[str]) -> Adapter:
    """Return an adapter with about a tenth of the weights' size, which changes answers and keeps them apart."""
    rng = np.random.default_rng(seed)
    matrices = {}
    for name, (num_rows, num_columns) in expected_shapes(spec).items():
        if is_adaptable(name) and name.rpartition(".")[2] in parts:
            shrink = rng.standard_normal((rank, num_columns), np.float32) * num_columns**-0.5
            expand = rng.standard_normal((num_rows, rank), np.float32) * 0.1 * rank**-0.5
            matrices[name] = LowRank(shrink.astype(np.float32), expand.astype(np.float32))
    return Adapter(identity=str(seed), matrices=matrices)


def load_runner(model_name: str, dtype: str, *, slots: int, rank: int, cache_dir: Path) -> NativeRunner:
    """Load a model with slots for adapters."""
    model = load_model(model_name)
    plan = plan_runner(
        model.spec,
        dtype=dtype,
        kv_dtype="int8" if dtype.endswith("a8") else "bf16",
        block_tokens=BLOCK,
        max_model_len=CONTEXT + NUM_TOKENS + BLOCK,
        max_num_seqs=slots,
        max_num_batched_tokens=512,
        budget=MemoryBudget(available_bytes=available_memory_bytes()),
        layer_formats=layer_formats_of(model.spec, model.weights),
        max_adapters=slots,
        max_adapter_rank=rank,
    )
    return load_native_runner(model.spec, model.weights, plan, cache_dir=cache_dir)


def step_of(tokens: Sequence[int], position: int, adapters: Int32 | None, first: int = 0) -> StepInput:
    """Return a decode step: one token for each sequence, on blocks of its own."""
    count = len(tokens)
    per_sequence = -(-(CONTEXT + NUM_TOKENS) // BLOCK)
    tables = (first + np.arange(count))[:, None] * per_sequence + np.arange(per_sequence)
    return StepInput(
        token_ids=np.array(tokens, np.int32),
        query_starts=np.arange(count + 1, dtype=np.int32),
        context_lens=np.full(count, position, np.int32),
        block_tables=np.ascontiguousarray(tables, np.int32),
        rows=np.arange(count, dtype=np.int32),
        sampling=stack_sampling([{}] * count),
        adapters=adapters,
    )


def answers(runner: NativeRunner, slots: Sequence[int], first: int = 0) -> list[list[int]]:
    """Decode greedily from one token; return the tokens of each sequence."""
    tokens = [[100 + first + index] for index in range(len(slots))]
    for position in range(NUM_TOKENS):
        step = step_of([own[-1] for own in tokens], position, np.array(slots, np.int32), first)
        for own, token in zip(tokens, runner.execute(step).token_ids.tolist(), strict=True):
            own.append(token)
    return tokens


def times_of(runner: NativeRunner, cases: dict[str, Int32 | None], count: int, seconds: float) -> dict[str, float]:
    """Return the median seconds of a step of each case, measured in turns."""
    tokens, taken = list(range(200, 200 + count)), {name: [] for name in cases}
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        for name, adapters in cases.items():
            step = step_of(tokens, CONTEXT, adapters)
            started = time.perf_counter()
            runner.execute(step)
            taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtypes", default="w4a16,w8a8")
    parser.add_argument("--adapters", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--parts", default=",".join(sorted(ADAPTED_PARTS)))
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    count = options.adapters
    cases: dict[str, Int32 | None] = {
        "none": None,
        "one": np.zeros(count, np.int32),
        "each its own": np.arange(count, dtype=np.int32),
    }
    with TemporaryDirectory() as folder:
        for dtype in options.dtypes.split(","):
            runner = load_runner(options.model, dtype, slots=count, rank=options.rank, cache_dir=Path(folder))
            for slot in range(count):
                adapter = random_adapter(runner.spec, rank=options.rank, seed=slot, parts=options.parts.split(","))
                runner.load_adapter(slot, adapter)
            together = answers(runner, range(count))
            alone = [answers(runner, [slot], first=slot)[0] for slot in range(count)]
            plain = answers(runner, [-1] * count)
            differing = sum(own != other for own, other in zip(together, plain, strict=True))
            times = times_of(runner, cases, count, options.seconds)
            print(f"{dtype}: tokens as alone: {together == alone}; {differing} of {count} differ from the base model's")
            for name, seconds in times.items():
                print(f"  {name:13} {seconds * 1e3:7.2f} ms a step, speed {times['none'] / seconds:.2f}")
            runner.close()


if __name__ == "__main__":
    main()
