"""Blocks and states that a second engine on the native kernels reads from disk have the bytes that were computed."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.inference.engine.core.states import StatePool
from headrace.inference.engine.prefix_store.store import FileStore
from headrace.inference.models.spec import RopeSpec
from tests.inference.engine.prefix_store.test_store import make_folder
from tests.inference.engine.support import LIMITS, ask, core_of, make_engine, request, running
from tests.inference.engine.test_native_bytes import (
    DELTA_SPEC,
    LOOPING,
    ROOM,
    SHARED,
    SPEC,
    SSD_SPEC,
    STATE_SPEC,
    essence,
)
from tests.inference.runner.native_models import load
from tests.inference.runner.weights import random_weights

WINDOWS = replace(SPEC, windows=(24, 0), ropes=(RopeSpec(theta=1e4), RopeSpec(theta=1e6)), rope_of_layer=(0, 1))
NETWORKS = {
    "bf16": (SPEC, "bf16", "bf16"),
    "int8": (SPEC, "w8a8", "int8"),
    "windows": (WINDOWS, "bf16", "bf16"),
    "conv": (STATE_SPEC, "w8a8", "int8"),
    "delta": (DELTA_SPEC, "bf16", "int8"),
    "ssd": (SSD_SPEC, "w4a8", "bf16"),
}
PROMPTS = [SHARED * 3 + "First: aab", SHARED * 3 + "Second: abba", "aabb" * 30]


@pytest.mark.parametrize("network", NETWORKS)
async def test_blocks_and_states_come_back_bit_by_bit(network, tmp_path):
    spec, dtype, kv_dtype = NETWORKS[network]
    weights = random_weights(spec)
    wanted = [request(prompt, max_new_tokens=60, logprobs=2, logit_bias=LOOPING) for prompt in PROMPTS]

    def engine_of(name):
        room = replace(ROOM, num_state_slots=32, max_draft_tokens=6) if spec.has_state else ROOM
        runner = load(spec, weights, tmp_path, dtype=dtype, kv_dtype=kv_dtype, threads=2, limits=room)
        identity = runner.cache_identity()
        store = FileStore(make_folder(tmp_path / name, identity), runner.cache_rows(), max_bytes=1 << 30)
        limits = replace(LIMITS, max_num_seqs=16, max_draft_tokens=6, max_num_batched_tokens=64)
        return make_engine(limits=limits, runner=runner, store=store), runner.cache_rows()

    def contents(engine, rows):
        """The bytes of every cached block and checkpoint, by its hash."""
        scheduler = core_of(engine).scheduler
        found = {("kv", key): rows["kv"][row].copy() for key, row in scheduler.pool._by_hash.items()}
        if isinstance(scheduler.states, StatePool):
            slots = scheduler.states.slots._by_hash
            found |= {("state", key): rows["state"][row].copy() for key, row in slots.items()}
        return found

    (tmp_path / "store").mkdir()
    engine, rows = engine_of("store")
    async with running(engine):
        expected = [essence(await ask(engine, sent)) for sent in wanted]
        first = contents(engine, rows)
    engine, rows = engine_of("store")
    async with running(engine):
        at_the_start = set(contents(engine, rows))
        answers = [await ask(engine, sent) for sent in wanted]
        second = contents(engine, rows)
        stats = engine.stats()
    assert [essence(answer) for answer in answers] == expected
    assert stats.stored_tokens_total > 0
    assert all(answer.finish.cached_tokens > 0 for answer in answers)
    same = [key for key in second if key in first and key not in at_the_start]
    assert len(same) > 10
    assert all(np.array_equal(first[key], second[key]) for key in same if key[0] == "kv")
    if spec.has_state:
        assert {kind for kind, _ in same} == {"kv", "state"}
        assert stats.checkpoint_hits_total == len(wanted)
