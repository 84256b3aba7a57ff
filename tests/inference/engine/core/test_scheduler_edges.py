"""The scheduler at the edges of blocks, budgets and limits, where a step more or less is wrong."""

import pytest

from headrace.inference.engine.core.scheduler import Scheduler
from headrace.inference.engine.core.sequence import Sequence
from headrace.inference.engine.core.step_plan import StepPlan
from tests.inference.engine.support import FreeRows

from .test_scheduler import BLOCK, make_scheduler, make_sequence, run_drafting_step, run_step


def running(scheduler: Scheduler, *sizes: int, max_new: int = 40) -> list[Sequence]:
    """Add sequences of these prompt sizes and compute their prompts."""
    sequences = [make_sequence(order, [order + 1] * size, max_new=max_new) for order, size in enumerate(sizes)]
    for sequence in sequences:
        scheduler.add(sequence)
    run_step(scheduler)
    return sequences


def test_running_sequences_have_the_slots_from_zero_on() -> None:
    scheduler = make_scheduler(max_num_seqs=3)
    assert [s.slot for s in running(scheduler, 4, 4, 4)] == [0, 1, 2]
    scheduler.add(make_sequence(3, [4] * 4))
    run_step(scheduler)
    assert len(scheduler.waiting) == 1


def test_a_block_is_allocated_when_the_last_one_is_full_and_not_before() -> None:
    scheduler = make_scheduler()
    (sequence,) = running(scheduler, BLOCK - 1)
    assert sequence.num_tokens == BLOCK  # the block has room for the token that the next step computes
    run_step(scheduler)
    assert len(sequence.blocks) == 1
    run_step(scheduler)
    assert len(sequence.blocks) == 2


def test_drafts_are_counted_and_fill_a_block_before_another_is_allocated() -> None:
    scheduler = make_scheduler(max_draft_tokens=BLOCK - 1)
    scheduler._row_costs = FreeRows()
    sequence = make_sequence(0, [0] * (2 * BLOCK), max_new=40)
    scheduler.add(sequence)
    run_drafting_step(scheduler)
    plan = scheduler.schedule(0.0)
    assert (plan.counts, plan.num_drafted, plan.num_tokens) == ([BLOCK], BLOCK - 1, BLOCK)
    assert len(sequence.blocks) == 3
    assert plan.attended == plan.decode_attended == 9 + 10 + 11 + 12, "the newest token and three drafts"


@pytest.mark.parametrize(("num_free", "num_drafted"), [(1, 1), (2, 1), (3, 3)])
def test_drafts_leave_a_free_block_for_each_running_sequence_and_the_watermark(num_free: int, num_drafted: int) -> None:
    scheduler = make_scheduler(num_blocks=100, max_draft_tokens=3)  # the watermark is one block
    scheduler._row_costs = FreeRows()
    scheduler.add(make_sequence(0, [0] * (2 * BLOCK - 2), max_new=40))
    run_drafting_step(scheduler)  # 7 tokens in 2 blocks: room for one draft token
    scheduler.pool.allocate(scheduler.pool.num_free - num_free)
    assert scheduler.schedule(0.0).num_drafted == num_drafted


def test_a_preemption_is_counted_once() -> None:
    scheduler = make_scheduler()
    (sequence,) = running(scheduler, 8)
    plan = StepPlan()
    scheduler._preempt(sequence, plan)
    assert (sequence.num_preemptions, plan.preempted, scheduler.waiting) == (1, [sequence], [sequence])
    assert (sequence.num_computed_tokens, sequence.num_registered_blocks) == (0, 0)


def test_a_full_budget_plans_no_empty_chunk() -> None:
    scheduler = make_scheduler(max_step_tokens=16)
    first, second = make_sequence(0, [1] * 40), make_sequence(1, [2] * 40)
    scheduler.add(first)
    run_step(scheduler)
    scheduler.add(second)
    plan, _ = run_step(scheduler)
    assert (plan.sequences, plan.counts, scheduler.waiting) == ([first], [16], [second])


def test_one_prompt_is_scored_at_a_time_within_the_rows_and_none_overtakes_it() -> None:
    scheduler = make_scheduler(max_num_seqs=4, max_step_tokens=32, max_step_rows=12)
    scored = [make_sequence(order, [order] * 20) for order in range(2)]
    for sequence in scored:
        sequence.scores_prompt = True
        scheduler.add(sequence)
    scheduler.add(make_sequence(2, [7] * 4))
    plan, _ = run_step(scheduler)
    assert (plan.sequences, plan.counts) == ([scored[0]], [12 - 4 + 1])
    assert [s.arrival_id for s in scheduler.waiting] == [1, 2]


def test_prompts_in_prefill_share_each_step() -> None:
    scheduler = make_scheduler(max_num_seqs=4, max_step_tokens=32, max_step_rows=12)
    scored = make_sequence(0, [1] * 20)
    scored.scores_prompt = True
    scheduler.add(scored)
    scheduler.add(make_sequence(1, [2] * 60))
    assert [run_step(scheduler)[0].counts for _ in range(3)] == [[9, 23], [9, 23], [2, 14]]


def test_a_prompt_that_needs_one_step_waits_for_a_budget_that_holds_it() -> None:
    scheduler = make_scheduler(max_step_tokens=32)
    scheduler._has_chunks = False
    for order, size in enumerate([20, 20, 4]):
        scheduler.add(make_sequence(order, [order] * size, max_new=1))
    assert [run_step(scheduler)[0].counts for _ in range(2)] == [[20], [20, 4]]


def test_blocks_of_a_sequence_that_shares_none_are_not_registered() -> None:
    scheduler = make_scheduler()
    private = make_sequence(0, [9] * 16)
    private.shares_blocks = False
    scheduler.add(private)
    run_step(scheduler)
    assert private.num_registered_blocks == 0
    other = make_sequence(1, [9] * 16)
    scheduler.add(other)
    plan, _ = run_step(scheduler)
    assert (plan.counts, other.num_cached_tokens) == ([1, 16], 0)


def test_expected_growth_shrinks_with_the_tokens_that_an_answer_has() -> None:
    scheduler = make_scheduler()
    scheduler._expected_output_tokens = 32.0
    sequence = make_sequence(0, [1] * 8, max_new=100)
    growth = []
    for _ in range(3):
        growth.append(scheduler._growth_blocks(sequence, is_certain=False))
        for _ in range(16):
            sequence.append(5)
    assert growth == [8, 4, 1]
    assert scheduler._growth_blocks(sequence, is_certain=True) == 27 - 14
