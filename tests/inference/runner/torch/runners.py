"""Loading of torch runners on the CPU in tests."""

import threading
from dataclasses import replace

from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.torch.parallel import Collectives, Shard
from headrace.inference.runner.torch.plan import TorchPlan
from headrace.inference.runner.torch.rank import Rank
from headrace.inference.runner.torch.runner import TorchRunner, load_torch_runner
from tests.inference.runner.native_models import LIMITS


def plan_of(dtype="fp32", *, limits=LIMITS, **changes) -> TorchPlan:
    block_budget = MemoryBudget(available_bytes=1 << 34, max_kv_cache_tokens=limits.num_blocks * limits.block_tokens)
    return TorchPlan(dtype=dtype, device="cpu", limits=limits, budget=block_budget, **changes)


def load(spec, weights, dtype="fp32", **changes) -> TorchRunner:
    return load_torch_runner(spec, weights, plan_of(dtype, **changes), threads=1)


class ThreadCollectives(Collectives):
    """Ranks that are threads of one process, which meet at a barrier."""

    def __init__(self, shard, places, barrier):
        super().__init__(shard, is_invariant=True)
        self._places = places
        self._barrier = barrier

    def _parts(self, x):
        return self._exchange(x)

    def least(self, value, device):
        return min(self._exchange(value))

    def _exchange(self, value):
        self._places[self.shard.rank] = value
        self._barrier.wait(60)
        values = list(self._places)
        self._barrier.wait(60)
        return values


def on_ranks(size, work):
    """Return what `work` returns on each of some ranks, which are threads."""
    places, barrier, results = [None] * size, threading.Barrier(size), [None] * size

    def run(rank):
        try:
            results[rank] = work(ThreadCollectives(Shard(rank, size), places, barrier))
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def load_rank(spec, weights, collectives, *, limits=LIMITS, dtype="fp32") -> Rank:
    plan = replace(plan_of(dtype, limits=limits), num_ranks=collectives.shard.size)
    return Rank.load(spec, weights, plan, collectives)
