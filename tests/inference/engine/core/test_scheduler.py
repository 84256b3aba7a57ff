"""The scheduler: nothing is lost, no sequence starves, steps keep to their budget."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.generation import SamplingParams
from headrace.inference.engine.core.blocks import chain_hash, root_hash
from headrace.inference.engine.core.scheduler import MAX_PREEMPTIONS, MIN_CHUNK_TOKENS, Scheduler
from headrace.inference.engine.core.sequence import Sequence, SequencePhase
from headrace.inference.engine.core.step_plan import StepPlan
from headrace.inference.engine.core.step_time import StepTimeModel
from headrace.inference.engine.spec_decode.drafting import RowCostModel
from tests.inference.engine.books import check_scheduler
from tests.inference.engine.support import LIMITS, FreeRows, runner_limits

BLOCK = 4


def make_scheduler(
    *,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_step_tokens: int = 32,
    max_step_rows: int | None = None,
    max_step_s: float | None = None,
    max_draft_tokens: int = 0,
) -> Scheduler:
    limits = replace(
        LIMITS,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_step_tokens,
        max_step_s=max_step_s,
        max_draft_tokens=max_draft_tokens,
    )
    runner = runner_limits(num_blocks, block_tokens=BLOCK, max_step_rows=max_step_rows or max_step_tokens)
    return Scheduler(limits, runner, StepTimeModel(), RowCostModel())


def make_sequence(arrival_id: int, prompt: list[int], *, max_new: int = 8, salt: str = "") -> Sequence:
    tokens = np.zeros(len(prompt) + max_new, np.int32)
    tokens[: len(prompt)] = prompt
    return Sequence(
        arrival_id=arrival_id,
        tokens=tokens,
        num_tokens=len(prompt),
        num_prompt_tokens=len(prompt),
        max_total_tokens=len(tokens),
        params=SamplingParams(),
        root_hash=root_hash(salt),
    )


def run_step(scheduler: Scheduler) -> tuple[StepPlan, list[Sequence]]:
    """Do what the engine does, with made-up tokens; return the plan and who ended."""
    plan = scheduler.schedule(0.0)
    check_plan(scheduler, plan)
    scheduler.commit(plan)
    ended = []
    for sequence in plan.sequences:
        if sequence.num_computed_tokens == sequence.num_tokens:
            sequence.append(sequence.arrival_id * 1000 + sequence.num_tokens)
            if sequence.num_tokens == sequence.max_total_tokens:
                scheduler.finish(sequence)
                ended.append(sequence)
    check_scheduler(scheduler)
    return plan, ended


def check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    assert sum(plan.counts) == plan.num_tokens <= scheduler._limits.max_num_batched_tokens
    assert len(plan.sequences) == len(set(map(id, plan.sequences)))
    for sequence, count in zip(plan.sequences, plan.counts, strict=True):
        assert sequence.phase is SequencePhase.RUNNING
        assert count > 0
        assert sequence.num_computed_tokens + count <= sequence.num_tokens
        assert len(sequence.blocks) * BLOCK >= sequence.num_computed_tokens + count


def run_all(scheduler: Scheduler, *, max_steps: int = 5000) -> list[Sequence]:
    ended: list[Sequence] = []
    for _ in range(max_steps):
        if not scheduler.has_work:
            assert scheduler.pool.num_free == scheduler.pool.num_blocks
            return ended
        plan, done = run_step(scheduler)
        assert plan.sequences, "a step that does nothing while there is work"
        ended += done
    raise AssertionError("the work never ended")


def test_ten_thousand_random_operations_leave_the_pool_consistent() -> None:
    rng = random.Random(7)
    scheduler = make_scheduler(num_blocks=40, max_num_seqs=6, max_step_tokens=24)
    live: list[Sequence] = []
    num_preempted = 0
    for order in range(10_000):
        choice = rng.random()
        if choice < 0.25 and len(live) < 30:
            shared = [1] * rng.choice([0, 8, 20])
            prompt = shared + [rng.randrange(5) for _ in range(rng.randint(1, 40))]
            sequence = make_sequence(order, prompt, max_new=rng.randint(1, 40), salt=rng.choice(["", "b"]))
            scheduler.add(sequence)
            live.append(sequence)
        elif choice < 0.3 and live:
            scheduler.finish(live.pop(rng.randrange(len(live))))
            check_scheduler(scheduler)
        elif choice < 0.31 and scheduler.running:
            scheduler._preempt(rng.choice(scheduler.running), StepPlan())
        else:
            plan, _ = run_step(scheduler)
            num_preempted += len(plan.preempted)
            live = [s for s in live if s.phase is not SequencePhase.DONE]
    run_all(scheduler)
    assert num_preempted > 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=25),
    st.integers(30, 60),
    st.booleans(),
)
def test_every_sequence_ends_and_none_is_preempted_forever(
    shapes: list[tuple[int, int]], num_blocks: int, is_shared: bool
) -> None:
    scheduler = make_scheduler(num_blocks=num_blocks, max_num_seqs=8)
    sequences = [
        make_sequence(order, [0 if is_shared else order] * prompt, max_new=max_new)
        for order, (prompt, max_new) in enumerate(shapes)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    ended = run_all(scheduler)
    assert sorted(s.arrival_id for s in ended) == list(range(len(sequences)))
    assert max(s.num_preemptions for s in sequences) <= MAX_PREEMPTIONS + 1


def next_token(sequence: Sequence) -> int:
    """A text that repeats itself now and then, and depends on all that was said."""
    recent = sequence.tokens[max(0, sequence.num_tokens - 5) : sequence.num_tokens]
    return int(recent.sum() * 7 + sequence.arrival_id) % 5 if recent.sum() % 4 else int(recent[-1])


def run_drafting_step(scheduler: Scheduler) -> int:
    """Do what the engine does, with a model of our own; return how many drafted tokens were right."""
    plan = scheduler.schedule(0.0)
    drafts = [sequence.tokens[sequence.num_tokens :].copy() for sequence in plan.sequences]
    assert sum(plan.counts) == plan.num_tokens <= scheduler._limits.max_num_batched_tokens
    assert plan.num_decodes + plan.num_drafted <= scheduler._max_rows
    assert plan.attended == sum(
        s.num_computed_tokens + i + 1 for s, n in zip(plan.sequences, plan.counts, strict=True) for i in range(n)
    )
    for sequence, count in zip(plan.sequences, plan.counts, strict=True):
        assert len(sequence.blocks) * BLOCK >= sequence.num_computed_tokens + count
    scheduler.commit(plan)
    num_right = 0
    for index, (sequence, draft) in enumerate(zip(plan.sequences, drafts, strict=True)):
        if sequence.num_computed_tokens < sequence.num_tokens:
            continue
        num_drafted = plan.counts[index] - 1 if index < plan.num_decodes else 0
        for depth in range(num_drafted + 1):
            token = next_token(sequence)
            sequence.append(token)
            if depth == num_drafted or token != draft[depth]:
                break
        num_right += depth
        if depth:
            scheduler.accept(sequence)
        assert sequence.num_computed_tokens == sequence.num_tokens - 1
        for number, block_hash in enumerate(sequence.hashes):
            parent = sequence.hashes[number - 1] if number else sequence.root_hash
            known = sequence.tokens[number * BLOCK : (number + 1) * BLOCK]
            assert block_hash == chain_hash(parent, known.tobytes())
        if sequence.num_tokens == sequence.max_total_tokens:
            scheduler.finish(sequence)
    check_scheduler(scheduler)
    return num_right


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=12),
    st.integers(26, 60),
    st.integers(1, 9),
    st.integers(8, 40),
    st.integers(0, 2**32 - 1),
)
def test_drafting_does_not_change_the_tokens_of_a_sequence(
    shapes: list[tuple[int, int]], num_blocks: int, max_draft_tokens: int, max_step_rows: int, seed: int
) -> None:
    scheduler = make_scheduler(
        num_blocks=num_blocks, max_step_tokens=48, max_step_rows=max_step_rows, max_draft_tokens=max_draft_tokens
    )
    scheduler._row_costs = FreeRows()
    rng = np.random.default_rng(seed)
    sequences = [
        make_sequence(order, rng.integers(0, 4, prompt).tolist(), max_new=max_new)
        for order, (prompt, max_new) in enumerate(shapes)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    for _ in range(5000):
        if not scheduler.has_work:
            break
        run_drafting_step(scheduler)
    assert scheduler.pool.num_free == scheduler.pool.num_blocks
    for sequence in sequences:
        plain = make_sequence(sequence.arrival_id, sequence.tokens[: sequence.num_prompt_tokens].tolist(), max_new=1000)
        while plain.num_tokens < sequence.num_tokens:
            plain.append(next_token(plain))
        assert sequence.tokens.tolist() == plain.tokens[: plain.num_tokens].tolist()
        assert sequence.num_tokens == sequence.max_total_tokens


def test_a_repeating_sequence_needs_fewer_steps() -> None:
    scheduler = make_scheduler(max_draft_tokens=4)
    scheduler._row_costs = FreeRows()
    scheduler.add(make_sequence(0, [0, 0, 0], max_new=60))
    num_steps = 0
    while scheduler.has_work:
        run_drafting_step(scheduler)
        num_steps += 1
    assert num_steps < 20


def test_drafts_take_no_block_that_a_decoding_sequence_may_need() -> None:
    scheduler = make_scheduler(num_blocks=4, max_num_seqs=2, max_draft_tokens=6)
    scheduler._row_costs = FreeRows()
    scheduler._expected_output_tokens = 0.0
    for order in range(2):
        scheduler.add(make_sequence(order, [0, 0, 0], max_new=5))
    num_right = sum(run_drafting_step(scheduler) for _ in range(12) if scheduler.has_work)
    assert not scheduler.has_work
    assert num_right > 0


def test_a_preempted_sequence_finds_its_blocks_again() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence(0, list(range(16)), max_new=8)
    scheduler.add(sequence)
    run_step(scheduler)
    run_step(scheduler)
    known = sequence.num_tokens
    scheduler._preempt(sequence, StepPlan())
    assert sequence.phase is SequencePhase.WAITING
    plan, _ = run_step(scheduler)
    assert sequence.num_tokens == known + 1
    assert plan.counts == [known - 16]
    assert sequence.num_cached_tokens == 0


def test_the_newest_sequence_is_preempted_and_the_oldest_continues() -> None:
    scheduler = make_scheduler(num_blocks=8, max_num_seqs=4)
    old, new = make_sequence(0, [1] * 12, max_new=20), make_sequence(1, [2] * 12, max_new=20)
    scheduler._expected_output_tokens = 0.0
    scheduler.add(old)
    scheduler.add(new)
    while not new.num_preemptions:
        run_step(scheduler)
    assert (old.num_preemptions, old.phase) == (0, SequencePhase.RUNNING)
    ended = run_all(scheduler)
    assert [s.arrival_id for s in ended] == [0, 1]


def test_admission_reserves_room_for_the_growth_of_running_answers() -> None:
    scheduler = make_scheduler(num_blocks=20)
    scheduler.add(make_sequence(0, [1] * 20, max_new=40))
    scheduler.add(make_sequence(1, [2] * 20, max_new=40))
    run_step(scheduler)
    assert [s.arrival_id for s in scheduler.running] == [0]
    assert all(s.num_preemptions == 0 for s in run_all(scheduler))


def test_waiting_sequences_are_admitted_in_order_of_arrival() -> None:
    scheduler = make_scheduler(num_blocks=20, max_num_seqs=4, max_step_tokens=32)
    for order, size in enumerate([40, 60, 4, 4]):
        scheduler.add(make_sequence(order, [order] * size, max_new=1))
    ended = run_all(scheduler)
    assert [s.arrival_id for s in ended] == [0, 1, 2, 3]


def test_decoding_continues_during_a_long_prefill() -> None:
    scheduler = make_scheduler(max_step_tokens=16)
    decoding, long = make_sequence(0, [1] * 4, max_new=20), make_sequence(1, [2] * 100)
    scheduler.add(decoding)
    run_step(scheduler)
    scheduler.add(long)
    plan, _ = run_step(scheduler)
    assert plan.num_decodes == 1
    assert (plan.sequences, plan.counts) == ([decoding, long], [1, 15])


def test_forced_tokens_go_before_an_older_prompt() -> None:
    scheduler = make_scheduler(max_step_tokens=16)
    decoding, long = make_sequence(1, [1] * 4, max_new=20), make_sequence(0, [2] * 100)
    scheduler.add(decoding)
    run_step(scheduler)
    scheduler.add(long)
    for token_id in (5, 6, 7):
        decoding.append(token_id)
    plan, _ = run_step(scheduler)
    assert (plan.sequences, plan.counts) == ([decoding, long], [4, 12])


def test_the_latency_limit_shrinks_chunks_only_while_sequences_decode() -> None:
    scheduler = make_scheduler(num_blocks=400, max_step_tokens=512, max_step_s=0.05)
    for tokens in (1, 64, 256, 512) * 5:
        scheduler._step_times.observe(tokens=tokens, attended=tokens * 50, seconds=0.001 * tokens)
    first, second = make_sequence(0, [1] * 300, max_new=50), make_sequence(1, [2] * 300)
    scheduler.add(first)
    plan, _ = run_step(scheduler)
    assert plan.counts == [300]
    scheduler.add(second)
    plan, _ = run_step(scheduler)
    assert plan.sequences == [first, second]
    assert 30 <= plan.counts[1] <= 50


def test_a_prompt_progresses_however_slow_steps_are() -> None:
    scheduler = make_scheduler(num_blocks=400, max_step_tokens=512, max_step_s=0.001)
    for _ in range(5):
        scheduler._step_times.observe(tokens=4, attended=400, seconds=1.0)
    scheduler.add(make_sequence(0, [1] * 4, max_new=50))
    run_step(scheduler)
    scheduler.add(make_sequence(1, [2] * 100))
    scheduler.add(make_sequence(2, [3] * 100))
    plan, _ = run_step(scheduler)
    assert plan.counts == [1, MIN_CHUNK_TOKENS]


def test_prompts_progress_when_decoding_alone_exceeds_the_limit() -> None:
    scheduler = make_scheduler(num_blocks=400, max_step_tokens=512, max_step_s=0.01)
    for tokens in (1, 4, 64, 256) * 5:
        scheduler._step_times.observe(tokens=tokens, attended=tokens, seconds=0.1 + 0.0005 * tokens)
    scheduler.add(make_sequence(0, [1] * 4, max_new=50))
    run_step(scheduler)
    scheduler.add(make_sequence(1, [2] * 200))
    plan, _ = run_step(scheduler)
    assert 50 <= plan.counts[1] <= 100


def test_a_burst_with_a_shared_prefix_computes_it_once() -> None:
    scheduler = make_scheduler(num_blocks=200, max_step_tokens=64)
    sequences = [make_sequence(order, [9] * 40 + [order], max_new=2) for order in range(6)]
    for sequence in sequences:
        scheduler.add(sequence)
    run_all(scheduler)
    assert [s.num_cached_tokens for s in sequences] == [0] + [40] * 5


def test_different_salts_share_no_blocks() -> None:
    scheduler = make_scheduler()
    first, second = make_sequence(0, [9] * 20, salt="a"), make_sequence(1, [9] * 20, salt="b")
    scheduler.add(first)
    run_step(scheduler)
    scheduler.add(second)
    run_all(scheduler)
    assert second.num_cached_tokens == 0


def test_the_last_known_token_is_always_computed() -> None:
    """A whole prompt in the cache still needs one token's logits."""
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, [9] * 16, max_new=1))
    run_all(scheduler)
    again = make_sequence(1, [9] * 16, max_new=1)
    scheduler.add(again)
    plan, _ = run_step(scheduler)
    assert plan.counts == [4]
    assert again.num_cached_tokens == 12


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_finishing_frees_blocks_in_every_phase(num_steps: int) -> None:
    scheduler = make_scheduler(max_step_tokens=16)
    sequence = make_sequence(0, [1] * 30)
    scheduler.add(sequence)
    for _ in range(num_steps):
        run_step(scheduler)
    scheduler.finish(sequence)
    scheduler.finish(sequence)
    assert not scheduler.has_work
    assert scheduler.pool.num_free == scheduler.pool.num_blocks
    check_scheduler(scheduler)
