import dataclasses

import numpy as np
import pytest

from headrace.core.errors import EngineFailed
from headrace.inference.models.mixers import ConvSpec, DeltaSpec, SsdSpec
from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.reference import ReferenceRunner
from headrace.inference.runner.step import RunnerLimits
from tests.inference.runner.states import INVALID_STATES, Walk, new_sequences
from tests.inference.runner.steps import make_step
from tests.inference.runner.weights import random_weights

SPEC = ModelSpec(
    family="test",
    num_layers=3,
    hidden_size=32,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=50,
    max_positions=128,
    norm_eps=1e-5,
    mixers=("conv", "attention", "conv"),
    conv=ConvSpec(taps=3),
)
LIMITS = RunnerLimits(
    num_blocks=32,
    block_tokens=4,
    max_step_tokens=128,
    max_step_sequences=8,
    max_step_rows=128,
    max_context_tokens=64,
    num_state_slots=9,
    max_draft_tokens=4,
)
TABLES = ([*range(12)], [*range(12, 24)], [*range(24, 32)])


DELTA = DeltaSpec(key_heads=2, value_heads=6, key_dim=12, value_dim=8, taps=4, norm_eps=1e-6, beta_scale=2.0)
NETWORKS = {f"{taps} taps": dataclasses.replace(SPEC, conv=ConvSpec(taps=taps)) for taps in (2, 3, 7)} | {
    f"delta, {order}": dataclasses.replace(
        SPEC, mixers=("delta", "attention", "delta"), delta=dataclasses.replace(DELTA, is_tiled=order == "tiled")
    )
    for order in ("grouped", "tiled")
}
NETWORKS["delta by channel"] = dataclasses.replace(
    SPEC, mixers=("delta", "attention", "delta"), delta=dataclasses.replace(DELTA, by_channel=True)
)
SSD = SsdSpec(heads=6, head_dim=8, state_size=12, groups=2, taps=4, norm_eps=1e-5)
NETWORKS |= {
    f"ssd, norm {norm}": dataclasses.replace(
        SPEC, mixers=("ssd", "none", "attention"), mlps=(False, True, False), ssd=dataclasses.replace(SSD, norm=norm)
    )
    for norm in ("gated", "before_gate", None)
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NETWORKS)
def test_logits_do_not_depend_on_chunks_drafts_slots_or_checkpoints(name, seed):
    spec, rng = NETWORKS[name], np.random.default_rng(seed)
    runner = ReferenceRunner(spec, random_weights(spec), LIMITS)
    prompts = [rng.integers(1, spec.vocab_size, length).tolist() for length in (40, 33, 1)]
    pieces = [(tokens, 0, table) for tokens, table in zip(prompts, TABLES, strict=True)]
    whole = runner.logits(make_step(*pieces, all_rows=True, states=new_sequences(*map(len, prompts))))
    starts, seen = np.cumsum([0, *map(len, prompts)]), set()
    for sequence, position, row in Walk(prompts, TABLES, rng, LIMITS, (1, 1, 2, 3, 7, 17)).run(runner.logits, 128):
        np.testing.assert_allclose(row, whole[starts[sequence] + position], rtol=1e-4, atol=1e-5)
        seen.add((sequence, position))
    assert len(seen) == len(whole)


@pytest.mark.parametrize("states", INVALID_STATES.values(), ids=INVALID_STATES.keys())
def test_a_step_that_would_read_or_write_another_state_is_invalid(states):
    runner = ReferenceRunner(SPEC, random_weights(SPEC), LIMITS)
    runner.logits(make_step(([1, 2, 3], 0, [0, 1]), states=new_sequences(3)))
    with pytest.raises(EngineFailed):
        runner.logits(make_step(([1, 2], 3, [0, 1]), ([4, 5], 0, [2]), states=states))


def test_networks_without_state_layers_take_no_states():
    spec = dataclasses.replace(SPEC, mixers=(), conv=None)
    limits = dataclasses.replace(LIMITS, num_state_slots=0)
    with pytest.raises(EngineFailed):
        ReferenceRunner(spec, random_weights(spec), limits).logits(make_step(([1], 0, [0]), states=new_sequences(1)))
