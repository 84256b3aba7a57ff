"""Decode steps of sequences with an adapter each, beside the same steps without: same tokens as alone, and speed."""

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from headrace.inference.models.adapter import ADAPTED_PARTS, Adapter, LowRank, is_adaptable
from headrace.inference.models.loading import load_model
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.native import NativeRunner
from headrace.inference.runner.step import Int32

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is started by its path, too

from benchmarks.harness.results import make_parser, names
from benchmarks.harness.steps import BLOCK, decode_step, load_runner

CONTEXT = 128
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


def tables_of(count: int, first: int = 0) -> Int32:
    """Return blocks of its own for each sequence."""
    per_sequence = -(-(CONTEXT + NUM_TOKENS) // BLOCK)
    tables: Int32 = ((first + np.arange(count))[:, None] * per_sequence + np.arange(per_sequence)).astype(np.int32)
    return tables


def answers(runner: NativeRunner, slots: Sequence[int], first: int = 0) -> list[list[int]]:
    """Decode greedily from one token; return the tokens of each sequence."""
    tokens = [[100 + first + index] for index in range(len(slots))]
    for position in range(NUM_TOKENS):
        latest = [own[-1] for own in tokens]
        step = decode_step(latest, tables_of(len(slots), first), position, adapters=np.array(slots, np.int32))
        for own, token in zip(tokens, runner.execute(step).token_ids.tolist(), strict=True):
            own.append(token)
    return tokens


def times_of(runner: NativeRunner, cases: dict[str, Int32 | None], count: int, seconds: float) -> dict[str, float]:
    """Return the median seconds of a step of each case, measured in turns."""
    tokens, taken = list(range(200, 200 + count)), {name: [] for name in cases}
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        for name, adapters in cases.items():
            step = decode_step(tokens, tables_of(count), CONTEXT, adapters=adapters)
            started = time.perf_counter()
            runner.execute(step)
            taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtypes", type=names, default=["w4a16", "w8a8"])
    parser.add_argument("--adapters", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--parts", type=names, default=sorted(ADAPTED_PARTS))
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    count = options.adapters
    cases: dict[str, Int32 | None] = {
        "none": None,
        "one": np.zeros(count, np.int32),
        "each its own": np.arange(count, dtype=np.int32),
    }
    with TemporaryDirectory() as folder:
        for dtype in options.dtypes:
            runner = load_runner(
                load_model(options.model),
                dtype=dtype,
                kv_dtype="int8" if dtype.endswith("a8") else "bf16",
                max_model_len=CONTEXT + NUM_TOKENS + BLOCK,
                max_num_seqs=count,
                max_num_batched_tokens=512,
                max_adapters=count,
                max_adapter_rank=options.rank,
                cache_dir=Path(folder),
            )
            for slot in range(count):
                adapter = random_adapter(runner.spec, rank=options.rank, seed=slot, parts=options.parts)
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
