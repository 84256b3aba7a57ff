"""The state pool: whatever happens between two steps, each state is that of the tokens before it."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.generation import SamplingParams
from headrace.inference.engine.core.blocks import root_hash
from headrace.inference.engine.core.scheduler import Scheduler
from headrace.inference.engine.core.sequence import Sequence
from headrace.inference.engine.core.states import StatePool
from headrace.inference.engine.core.step_input import StepBuilder
from headrace.inference.engine.core.step_plan import StepPlan
from headrace.inference.engine.core.step_time import StepTimeModel
from headrace.inference.engine.structured_output.constraint import GrammarMasks
from headrace.inference.runner.step import RunnerLimits
from headrace.testing.fake_runner import FAKE_SPEC
from tests.inference.engine.books import check_scheduler
from tests.inference.engine.fake_states import FakeStateRunner
from tests.inference.engine.support import LIMITS, FreeRows, runner_limits

BLOCK = 4
LETTERS = 3
FEW_LETTERS = dict.fromkeys(range(LETTERS, FAKE_SPEC.vocab_size), -100.0)
"""Answers over few letters repeat themselves, so that drafts are accepted, refused, and both."""


class Loop:
    """The engine's loop over a runner and its scheduler, without text."""

    def __init__(self, room: RunnerLimits, *, max_num_seqs: int, step_tokens: int) -> None:
        limits = replace(
            LIMITS,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=step_tokens,
            max_draft_tokens=room.max_draft_tokens,
        )
        self.runner = FakeStateRunner(limits=room, bias=FEW_LETTERS)
        self.scheduler = Scheduler(limits, room, StepTimeModel(), FreeRows())
        self.builder = StepBuilder(room, max_num_seqs=max_num_seqs, masks=GrammarMasks())

    def add(self, arrival_id: int, prompt: list[int], max_new: int) -> Sequence:
        tokens = np.zeros(len(prompt) + max_new, np.int32)
        tokens[: len(prompt)] = prompt
        sequence = Sequence(
            arrival_id=arrival_id,
            tokens=tokens,
            num_tokens=len(prompt),
            num_prompt_tokens=len(prompt),
            max_total_tokens=len(tokens),
            params=SamplingParams(),
            root_hash=root_hash(""),
        )
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule(0.0)
        for sequence in plan.admitted:
            self.builder.admit(sequence, None)
        step, rows = self.builder.build(plan)
        token_ids = self.runner.execute(step).token_ids.tolist()
        self.scheduler.commit(plan)
        for sequence, first, count in rows.drawing:
            for row in range(first, first + count):
                drafted = sequence.tokens[sequence.num_tokens] if row + 1 < first + count else -1
                sequence.append(token_ids[row])
                if drafted != token_ids[row]:
                    break
            if row > first:
                self.scheduler.accept(sequence)
            if sequence.num_tokens == sequence.max_total_tokens:
                self.scheduler.finish(sequence)
        check_scheduler(self.scheduler)
        return plan

    def run(self) -> None:
        for _ in range(3000):
            if not self.scheduler.has_work:
                return
            assert self.step().sequences, "a step that does nothing while there is work"
        raise AssertionError("the work never ended")


def room_of(num_state_slots: int, *, num_blocks: int = 60, max_draft_tokens: int = 0) -> RunnerLimits:
    return runner_limits(
        num_blocks, block_tokens=BLOCK, num_state_slots=num_state_slots, max_draft_tokens=max_draft_tokens
    )


def answer_alone(prompt: list[int], max_new: int) -> list[int]:
    loop = Loop(room_of(2, num_blocks=200), max_num_seqs=1, step_tokens=512)
    sequence = loop.add(0, prompt, max_new)
    loop.run()
    return sequence.output.tolist()


prompts = st.builds(
    lambda shared, own: [0, 1, 1, 2] * 6 * shared + own,
    st.integers(0, 2),
    st.lists(st.integers(0, LETTERS - 1), min_size=1, max_size=20),
)
actions = st.sampled_from(["step", "step", "step", "preempt", "finish", "evict"])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(prompts, st.integers(1, 40)), min_size=1, max_size=9),
    st.lists(st.tuples(actions, st.integers(0, 100)), max_size=60),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(30, 60),
    st.sampled_from([0, 1, 5]),
    st.sampled_from([24, 27, 48]),
)
def test_no_preemption_end_eviction_draft_or_chunk_changes_a_state(
    shapes: list[tuple[list[int], int]],
    events: list[tuple[str, int]],
    max_num_seqs: int,
    num_spare: int,
    num_blocks: int,
    max_draft_tokens: int,
    step_tokens: int,
) -> None:
    room = room_of(max_num_seqs + num_spare, num_blocks=num_blocks, max_draft_tokens=max_draft_tokens)
    loop = Loop(room, max_num_seqs=max_num_seqs, step_tokens=step_tokens)
    scheduler = loop.scheduler
    states = scheduler.states
    assert isinstance(states, StatePool)
    sequences = [loop.add(number, prompt, max_new) for number, (prompt, max_new) in enumerate(shapes)]
    for event, which in events:
        if event == "step" and scheduler.has_work:
            assert loop.step().sequences
        elif event == "preempt" and scheduler.running:
            scheduler._preempt(scheduler.running[which % len(scheduler.running)], StepPlan())
        elif event == "finish" and which < len(sequences):
            scheduler.finish(sequences[which])
        elif event == "evict":
            states.slots.free(states.slots.allocate(states.slots.num_free))
        check_scheduler(scheduler)
    loop.run()
    assert states.slots.num_free == room.num_state_slots
    for sequence in sequences:
        output = sequence.output.tolist()
        assert output == answer_alone(sequence.tokens[: sequence.num_prompt_tokens].tolist(), 40)[: len(output)]


def test_a_preempted_answer_goes_on_from_its_last_full_block() -> None:
    loop = Loop(room_of(4), max_num_seqs=1, step_tokens=48)
    sequence = loop.add(0, [0] * 10, 40)
    for _ in range(16):
        loop.step()
    assert sequence.num_tokens == 26
    loop.scheduler._preempt(sequence, StepPlan())
    plan = loop.step()
    assert (plan.counts, sequence.num_tokens) == ([2], 27)


def test_an_answer_holds_one_checkpoint_and_leaves_those_of_prompts_alone() -> None:
    loop = Loop(room_of(1 + 4, num_blocks=200), max_num_seqs=1, step_tokens=48)
    states = loop.scheduler.states
    assert isinstance(states, StatePool)
    states._spacing = 10_000
    for number in range(3):
        loop.add(number, [number] * 24, 1)
        loop.run()
    kept = list(states.slots._by_hash)
    assert len(kept) == 3
    loop.add(3, [5] * 24, 60)
    loop.run()
    assert states.num_checkpoints == 4
    assert len(set(kept) & set(states.slots._by_hash)) == 2  # the answer took one, and then replaced its own


def test_the_checkpoints_that_are_kept_longest_take_the_free_slots_first() -> None:
    loop = Loop(room_of(1 + 2), max_num_seqs=1, step_tokens=48)
    states = loop.scheduler.states
    assert isinstance(states, StatePool)
    states._spacing = 2
    sequence = loop.add(0, [1] * 40, 1)
    sequence.num_turn_tokens = 21
    loop.run()
    assert set(states.slots._by_hash) == {sequence.hashes[5 - 1], sequence.hashes[8 - 1]}
    assert next(iter(states.slots._cached)) == states.slots.find(sequence.hashes[5 - 1])


def test_a_sequence_waits_for_one_that_computes_a_branch_again_and_goes_on_from_its_checkpoint() -> None:
    loop = Loop(room_of(3 + 9), max_num_seqs=3, step_tokens=16)
    states = loop.scheduler.states
    assert isinstance(states, StatePool)
    states._spacing = 10_000
    loop.add(0, [1] * 24 + [2] * 24, 1)
    loop.run()
    first, second = loop.add(1, [1] * 24 + [0] * 20, 1), loop.add(2, [1] * 24 + [2] * 4 + [0] * 20, 1)
    third = loop.add(3, [1] * 24 + [0] * 4 + [1] * 20, 1)
    loop.run()
    assert [s.num_cached_tokens for s in (first, second, third)] == [0, 24, 28]


def test_a_checkpoint_is_forgotten_with_the_kv_of_its_block() -> None:
    loop = Loop(room_of(1 + 20, num_blocks=24), max_num_seqs=1, step_tokens=48)
    pool = loop.scheduler.pool
    loop.add(0, [1] * 30, 30)
    loop.run()
    assert loop.scheduler.states.num_checkpoints > 4
    pool.free(pool.allocate(pool.num_free))
    assert loop.scheduler.states.num_checkpoints == 0


def test_plain_decoding_reuses_its_arrays_and_writes_in_place() -> None:
    loop = Loop(room_of(4), max_num_seqs=2, step_tokens=48)
    loop.add(0, [1] * 5, 20)
    loop.step()
    plan = loop.step()
    assert plan.states is not None
    assert plan.states.read.tolist() == plan.states.write.tolist()
    assert (plan.states.replayed.tolist(), plan.states.certain.tolist()) == ([0], [1])


def test_models_without_states_have_none_in_their_steps() -> None:
    limits = replace(LIMITS, max_num_seqs=2)
    scheduler = Scheduler(limits, runner_limits(8, block_tokens=BLOCK), StepTimeModel(), FreeRows())
    assert scheduler.schedule(0.0).states is None
