"""Tensor parallelism: what each rank holds, and that ranks together compute what one computes."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from headrace.core.errors import EngineFailed, SettingsError
from headrace.inference.models.loading import load_model
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.runner.torch.parallel import Shard, check_shards, cut_of
from headrace.inference.runner.torch.runner import ModelFiles, load_torch_runner
from tests.inference.runner.adapters import random_adapter
from tests.inference.runner.native_models import LIMITS, SPECS, WITHOUT_TORCH, relative_error, small_spec
from tests.inference.runner.torch.runners import load, load_rank, on_ranks, plan_of
from tests.inference.runner.torch.test_runner import mixed_steps
from tests.inference.runner.weights import random_weights
from tests.parity.checkpoints import write_checkpoint

INDIVISIBLE = {
    "seven heads a group, llama 3 rope",
    "qwen 3, wide heads",
    "softcaps, norms on both sides",
}
"""Networks with an odd number of heads."""
SLOTS = replace(LIMITS, max_adapters=1, max_adapter_rank=8)


@pytest.mark.parametrize("name", sorted(set(SPECS) - INDIVISIBLE - WITHOUT_TORCH))
def test_two_ranks_compute_what_one_computes(name):
    spec, weights = SPECS[name], random_weights(SPECS[name])
    runner = load(spec, weights)
    expected = [runner.logits(step) for step in mixed_steps(spec)]

    def work(collectives):
        rank = load_rank(spec, weights, collectives)
        return [rank.forward(step)[0].numpy() for step in mixed_steps(spec)]

    for results in on_ranks(2, work):
        assert max(map(relative_error, results, expected)) < 1e-5


def test_four_ranks_share_two_kv_heads():
    spec = small_spec(num_heads=8, vocab_size=333)
    weights = random_weights(spec)
    step = next(iter(mixed_steps(spec)))
    expected = load(spec, weights).logits(step)

    def work(collectives):
        rank = load_rank(spec, weights, collectives)
        return rank.forward(step)[0].numpy(), rank.memory.block_bytes

    for logits, block_bytes in on_ranks(4, work):
        assert relative_error(logits, expected) < 1e-5
        assert block_bytes == 32 * 2 * 32 * 2 * 4  # tokens, key and value, head, layers, bytes


@pytest.mark.parametrize("name", sorted(set(SPECS) - WITHOUT_TORCH))
@pytest.mark.parametrize("size", [2, 4])
def test_every_number_of_a_weight_is_on_a_rank(name, size):
    spec = SPECS[name]
    try:
        check_shards(spec, size)
    except SettingsError:
        return
    for weight, (num_rows, num_columns) in expected_shapes(spec).items():
        held = np.zeros((num_rows, num_columns), bool)
        for rank in range(size):
            if (cut := cut_of(weight, spec, Shard(rank, size))) is not None:
                rows, columns = cut
                held[slice(None) if rows is None else rows, slice(None) if columns is None else columns] = True
        assert held.all(), weight


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({"num_heads": 6}, 4, r"tensor_parallel_size is 4, but the model has 6 attention heads; expected a divisor"),
        ({"intermediate_size": 161}, 2, "161 values inside the MLP"),
        ({"num_heads": 12, "num_kv_heads": 4, "intermediate_size": 162}, 6, "4 KV heads; expected a divisor or a mult"),
    ],
)
def test_a_network_that_does_not_divide_is_refused(changes, size, message):
    with pytest.raises(SettingsError, match=message):
        check_shards(small_spec(**changes), size)


def test_a_norm_over_the_heads_of_all_ranks_is_not_batch_invariant():
    spec = small_spec(qk_norm="full")
    check_shards(spec, 1, is_invariant=True)
    check_shards(spec, 2)
    with pytest.raises(SettingsError, match="tensor_parallel_size is 2, but the model norms all heads at once"):
        check_shards(spec, 2, is_invariant=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks") / "model"
    write_checkpoint("gemma", folder)
    return load_model(str(folder))


def two_processes(model):
    return load_torch_runner(
        model.spec, model.weights, plan_of(limits=SLOTS, num_ranks=2), files=ModelFiles(path=model.path), threads=1
    )


def sampled(steps):
    """Return the steps with a token drawn in each row."""
    for step in steps:
        step.sampling["temperature"] = 0.8
        step.sampling["seed"] = np.arange(len(step.rows))
        yield step


def test_ranks_in_processes_draw_the_same_tokens_and_the_end_of_an_idle_one_is_noticed(model):
    alone = load(model.spec, model.weights, limits=SLOTS)
    adapter = random_adapter(model.spec)
    runner = two_processes(model)
    try:
        runner.load_adapter(0, adapter)
        alone.load_adapter(0, adapter)
        steps = list(sampled(mixed_steps(model.spec)))
        adapted = replace(steps[0], adapters=np.array([0, -1], np.int32))
        for step in (*steps, adapted):
            np.testing.assert_array_equal(runner.execute(step).token_ids, alone.execute(step).token_ids)
        assert runner.info.kv_cache_bytes == 2 * alone.info.kv_cache_bytes  # one KV head, which both ranks hold
        (pid,) = runner._ranks.pids
        assert runner.is_healthy
        os.kill(pid, signal.SIGKILL)
        assert runner._ranks._failed.wait(60), "the end of an idle rank was not noticed"
        assert not runner.is_healthy
        for _ in range(2):
            with pytest.raises(EngineFailed, match=r"rank 1 \(pid \d+\) ended with status -9\. Restart the server"):
                runner.execute(steps[0])
    finally:
        runner.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_rank_that_cannot_load_the_model_stops_the_start(model, tmp_path):
    with pytest.raises(Exception, match="no-such-folder"):
        load_torch_runner(
            model.spec,
            model.weights,
            plan_of(limits=SLOTS, num_ranks=2),
            files=ModelFiles(path=tmp_path / "no-such-folder"),
            threads=1,
        )
