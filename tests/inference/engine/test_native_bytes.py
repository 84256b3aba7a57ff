"""
Batch invariance of the engine on the native kernels: small random networks, in every format.

Proves what `test_same_bytes` (a fake runner) and `test_native_invariance` (steps without an engine) cannot: the
scheduler's chunks, prefix hits, preemptions and draft tokens meet the native sampler, penalties and log probabilities.
`test_real_model` has one format with a real tokenizer and real logits.
"""

import random
from dataclasses import replace

import pytest

from headrace.core.generation import GenerationRequest
from headrace.inference.models.mixers import ConvSpec, DeltaSpec, SsdSpec
from headrace.inference.runner.step import RunnerLimits
from tests.inference.engine.support import (
    EOS,
    LIMITS,
    VOCAB_SIZE,
    Answer,
    FreeRows,
    ask,
    ask_together,
    core_of,
    make_engine,
    request,
    running,
)
from tests.inference.runner.native_models import FORMATS, load, small_spec
from tests.inference.runner.weights import random_weights

SPEC = small_spec(vocab_size=VOCAB_SIZE)
STATE_SPEC = small_spec(
    vocab_size=VOCAB_SIZE, num_layers=3, mixers=("conv", "attention", "conv"), conv=ConvSpec(taps=3), qk_norm="head"
)
DELTA_SPEC = replace(
    STATE_SPEC,
    mixers=("delta", "attention", "delta"),
    delta=DeltaSpec(key_heads=2, value_heads=4, key_dim=32, value_dim=32, taps=4, norm_eps=1e-6),
)
SSD_SPEC = replace(
    STATE_SPEC,
    mixers=("ssd", "attention", "ssd"),
    ssd=SsdSpec(heads=4, head_dim=32, state_size=32, groups=2, taps=4, norm_eps=1e-6),
)
ROOM = RunnerLimits(
    num_blocks=96,
    block_tokens=32,
    max_step_tokens=512,
    max_step_sequences=16,
    max_step_rows=512,
    max_context_tokens=512,
)
SHARED = "You are a helpful assistant who answers in one short sentence. "
LOOPING = dict.fromkeys(b"abcd", 30.0) | {EOS: 27.0}
"""Answers over four letters repeat themselves, so that drafts are accepted and refused."""
CASES = {
    "drafts, prefix hits and small chunks": (replace(LIMITS, max_draft_tokens=6, max_num_batched_tokens=64), 96),
    "preemption": (LIMITS, 20),
}
"""Limits and blocks. Drafts would make answers too short-lived to collide in a small pool."""
NETWORKS = [(SPEC, *formats) for formats in FORMATS] + [(STATE_SPEC, "w8a8", "int8"), (DELTA_SPEC, "bf16", "int8")]
NETWORKS += [(SSD_SPEC, "w4a8", "bf16")]


def mixed_requests() -> list[GenerationRequest]:
    """Greedy and seeded requests over a few letters, with shared beginnings, penalties, stops and log probabilities."""
    rng = random.Random(11)
    wanted = []
    for index in range(16):
        prompt = (SHARED if index % 2 else "") + "".join(rng.choice("abcd") for _ in range(rng.randint(1, 60)))
        sampling: dict[str, object] = {
            "max_new_tokens": rng.randint(60, 140),
            "logit_bias": LOOPING,
            "logprobs": rng.choice([None, 0, 2]),
            "ignore_eos": index % 4 != 0,
        }
        if index % 3 == 0:
            sampling |= {"temperature": 2.0, "top_p": 0.95, "seed": index}
        if index % 5 == 0:
            sampling |= {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7}
        if index % 7 == 0:
            sampling |= {"stop": ("abca", "dd"), "min_new_tokens": 10}
        if index == 9:
            sampling |= {"prompt_logprobs": 1}
        wanted.append(request(prompt, f"r{index}", **sampling))
    return wanted


def essence(answer: Answer) -> tuple[object, ...]:
    return answer.text, answer.tokens, answer.prompt, replace(answer.finish, cached_tokens=0)


@pytest.mark.parametrize(("spec", "dtype", "kv_dtype"), NETWORKS)
async def test_answers_do_not_depend_on_drafts_the_batch_the_cache_chunks_or_preemption(
    spec, dtype, kv_dtype, tmp_path
):
    wanted, weights = mixed_requests(), random_weights(spec)

    def engine_of(limits, num_blocks):
        room = replace(ROOM, num_blocks=num_blocks)
        if spec.has_state:  # one checkpoint for each sequence
            room = replace(room, num_state_slots=32, max_draft_tokens=6)
        engine = make_engine(
            limits=replace(limits, max_num_seqs=16),
            runner=load(spec, weights, tmp_path, dtype=dtype, kv_dtype=kv_dtype, threads=2, limits=room),
        )
        core_of(engine).scheduler._row_costs = FreeRows()
        core_of(engine).scheduler._expected_output_tokens = 1.0
        return engine

    plain = replace(LIMITS, enable_prefix_caching=False, max_num_batched_tokens=512)
    async with running(engine_of(plain, ROOM.num_blocks)) as engine:
        expected = [essence(await ask(engine, sent)) for sent in wanted]
    for case, (limits, num_blocks) in CASES.items():
        async with running(engine_of(limits, num_blocks)) as engine:
            answers = await ask_together(engine, wanted)
            stats = engine.stats()
        assert [essence(answer) for answer in answers] == expected, case
        if case == "preemption":
            assert stats.preemptions_total > 0
        else:
            assert 0 < stats.accepted_tokens_total < stats.drafted_tokens_total
            assert stats.cached_tokens_total > 0
