"""The arrays of a step match its plan."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.generation import SamplingParams
from headrace.inference.engine.core.sequence import Sequence, SequencePhase
from headrace.inference.engine.core.step_input import StepBuilder, make_extras
from headrace.inference.engine.core.step_plan import StepPlan
from headrace.inference.engine.structured_output.constraint import GrammarMasks
from headrace.testing.fake_runner import FAKE_LIMITS

LIMITS = replace(FAKE_LIMITS, block_tokens=4)


def make_sequence(slot: int, *, prompt: int, output: int, computed: int, **sampling: object) -> Sequence:
    params = SamplingParams(**sampling)
    return Sequence(
        arrival_id=slot,
        tokens=np.arange(slot * 100, slot * 100 + 64, dtype=np.int32),
        num_tokens=prompt + output,
        num_prompt_tokens=prompt,
        max_total_tokens=64,
        params=params,
        root_hash=b"",
        seed=params.seed or 0,
        scores_prompt=params.prompt_logprobs is not None,
        phase=SequencePhase.RUNNING,
        slot=slot,
        num_computed_tokens=computed,
        blocks=[slot * 10 + i for i in range(-(-(prompt + output) // 4))],
    )


def plan_of(decoding: list[Sequence], reading: list[tuple[Sequence, int]]) -> StepPlan:
    plan = StepPlan(list(decoding), [1] * len(decoding), len(decoding), num_tokens=len(decoding))
    for sequence, count in reading:
        plan.add(sequence, count)
    return plan


def builder_for(*sequences: Sequence, end_ids: tuple[int, ...] = ()) -> StepBuilder:
    builder = StepBuilder(LIMITS, max_num_seqs=8, masks=GrammarMasks())
    for sequence in sequences:
        builder.admit(sequence, make_extras(sequence.params, end_ids, None))
    return builder


def test_decoding_sequences_are_followed_by_chunks() -> None:
    first, second = make_sequence(3, prompt=5, output=2, computed=6), make_sequence(1, prompt=9, output=1, computed=9)
    reading = make_sequence(2, prompt=20, output=0, computed=4)
    step, logit_rows = builder_for(first, second, reading).build(plan_of([first, second], [(reading, 3)]))
    assert step.token_ids.tolist() == [306, 109, 204, 205, 206]
    assert step.query_starts.tolist() == [0, 1, 2, 5]
    assert step.context_lens.tolist() == [6, 9, 4]
    assert [
        row[: len(s.blocks)].tolist() for row, s in zip(step.block_tables, (first, second, reading), strict=True)
    ] == [
        first.blocks,
        second.blocks,
        reading.blocks,
    ]
    assert step.rows.tolist() == [0, 1]
    assert logit_rows.drawing == [(first, 0, 1), (second, 1, 1)]
    assert step.block_tables.flags.c_contiguous


@given(rounds=st.lists(st.sampled_from(["decode", "decode", "readmit", "leave"]), min_size=2, max_size=24))
def test_a_cached_step_equals_a_newly_built_one(rounds: list[str]) -> None:
    sequences = [make_sequence(slot, prompt=3 + slot, output=1, computed=3 + slot, seed=slot) for slot in range(3)]
    builder = builder_for(*sequences)
    for event in rounds:
        if event == "leave" and len(sequences) > 1:
            builder.release(sequences.pop().slot)
        elif event == "readmit":
            sequences[0].slot = sequences[0].slot % 2 + 5
            builder.admit(sequences[0], None)
        seen, logit_rows = builder.build(plan_of(sequences, []))
        new, new_logit_rows = builder_for(*sequences).build(plan_of(sequences, []))
        for name in ("token_ids", "query_starts", "context_lens", "block_tables", "rows", "sampling"):
            np.testing.assert_array_equal(getattr(seen, name), getattr(new, name), err_msg=name)
        assert logit_rows == new_logit_rows
        for sequence in sequences:
            sequence.num_tokens += 1
            sequence.num_computed_tokens += 1
            sequence.blocks += [sequence.arrival_id * 10 + len(sequence.blocks)] * (sequence.num_tokens % 4 == 1)


def test_tokens_have_the_type_of_their_text() -> None:
    single, pair = make_sequence(0, prompt=3, output=0, computed=0), make_sequence(1, prompt=5, output=0, computed=0)
    step, _ = builder_for(single, pair).build(plan_of([], [(single, 3), (pair, 5)]))
    assert step.token_types is None
    pair = replace(pair, second_start=2)
    step, _ = builder_for(single, pair).build(plan_of([], [(single, 3), (pair, 5)]))
    assert step.token_types.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


def test_a_chunk_that_reaches_the_end_of_the_prompt_draws() -> None:
    reading = make_sequence(2, prompt=7, output=0, computed=4, temperature=0.5, seed=77)
    step, logit_rows = builder_for(reading).build(plan_of([], [(reading, 3)]))
    assert (step.rows.tolist(), logit_rows.drawing) == ([2], [(reading, 0, 1)])
    row = step.sampling[0]
    assert (row["seed"], row["position"], row["temperature"], row["target"]) == (77, 7, 0.5, -1)


def test_the_position_of_a_draw_is_its_place_in_the_sequence() -> None:
    """However the tokens before it were computed: a preempted sequence draws the same numbers."""
    decoding = make_sequence(0, prompt=5, output=2, computed=6, seed=1)
    again = make_sequence(0, prompt=5, output=2, computed=0, seed=1)
    step, _ = builder_for(decoding).build(plan_of([decoding], []))
    read_again, _ = builder_for(again).build(plan_of([], [(again, 7)]))
    assert step.sampling.tolist() == read_again.sampling.tolist()


def test_scoring_rows_target_the_next_prompt_token() -> None:
    reading = make_sequence(1, prompt=6, output=0, computed=2, prompt_logprobs=3)
    reading.num_scored_tokens = 2
    step, logit_rows = builder_for(reading).build(plan_of([], [(reading, 4)]))
    assert logit_rows.scoring == [(reading, 0, 3)]
    assert step.rows.tolist() == [0, 1, 2, 3]
    assert step.sampling["target"].tolist() == [103, 104, 105, -1]
    assert step.sampling["num_top"].tolist() == [3, 3, 3, -1]


def test_tokens_scored_before_a_preemption_are_not_scored_again() -> None:
    reading = make_sequence(1, prompt=6, output=2, computed=0, prompt_logprobs=0)
    reading.num_scored_tokens = 5
    step, logit_rows = builder_for(reading).build(plan_of([], [(reading, 8)]))
    assert (logit_rows.scoring, step.rows.tolist()) == ([], [7])


def test_a_reused_slot_keeps_nothing_of_the_previous_sequence() -> None:
    first = make_sequence(0, prompt=9, output=1, computed=9, repetition_penalty=1.2)
    second = make_sequence(0, prompt=2, output=1, computed=2)
    second.blocks = [42]
    builder = builder_for(first)
    builder.build(plan_of([first], []))
    builder.admit(second, None)
    step, _ = builder.build(plan_of([second], []))
    assert step.block_tables.tolist() == [[42]]
    assert step.histories == ()
    assert step.sampling["repetition_penalty"].tolist() == [1.0]


def test_end_tokens_are_forbidden_until_the_minimum_length() -> None:
    sampling = {"min_new_tokens": 2, "logit_bias": {9: 1.5}}
    early = make_sequence(0, prompt=4, output=1, computed=4, **sampling)
    late = make_sequence(1, prompt=4, output=2, computed=5, **sampling)
    step, _ = builder_for(early, late, end_ids=(7,)).build(plan_of([early, late], []))
    assert [(b.row, b.ids.tolist(), b.values.tolist()) for b in step.biases] == [
        (0, [9, 7], [1.5, -np.inf]),
        (1, [9], [1.5]),
    ]


def test_penalties_see_the_prompt_and_the_answer() -> None:
    decoding = make_sequence(1, prompt=3, output=2, computed=4, presence_penalty=0.5)
    step, _ = builder_for(decoding).build(plan_of([decoding], []))
    (history,) = step.histories
    assert (history.row, history.num_prompt_tokens, history.tokens.tolist()) == (0, 3, [100, 101, 102, 103, 104])


def drafting(sequence: Sequence, count: int) -> StepPlan:
    plan = plan_of([make_sequence(2, prompt=5, output=1, computed=5), sequence], [])
    plan.add_draft(1, count)
    return plan


def test_draft_tokens_are_rows_that_assume_those_before_them() -> None:
    sequence = make_sequence(1, prompt=4, output=2, computed=5, temperature=0.5, seed=7)
    plan = drafting(sequence, 3)
    step, logit_rows = builder_for(plan.sequences[0], sequence).build(plan)
    assert step.token_ids.tolist() == [205, 105, 106, 107, 108]
    assert step.query_starts.tolist() == [0, 1, 5]
    assert step.context_lens.tolist() == [5, 5]
    assert step.rows.tolist() == [0, 1, 2, 3, 4]
    assert step.sampling["position"].tolist() == [6, 6, 7, 8, 9]
    assert step.sampling["seed"].tolist() == [0, 7, 7, 7, 7]
    assert [rows for _, *rows in logit_rows.drawing] == [[0, 1], [1, 4]]


def test_chunks_follow_draft_tokens() -> None:
    sequence, reading = (
        make_sequence(1, prompt=4, output=2, computed=5),
        make_sequence(3, prompt=9, output=0, computed=6),
    )
    plan = drafting(sequence, 2)
    plan.add(reading, 3)
    step, logit_rows = builder_for(*plan.sequences).build(plan)
    assert step.token_ids.tolist() == [205, 105, 106, 107, 306, 307, 308]
    assert step.rows.tolist() == [0, 1, 2, 3, 6]
    assert step.sampling["position"].tolist() == [6, 6, 7, 8, 9]
    assert [rows for _, *rows in logit_rows.drawing] == [[0, 1], [1, 3], [4, 1]]


def test_each_draft_row_has_its_own_history_and_banned_end_tokens() -> None:
    sequence = make_sequence(1, prompt=4, output=2, computed=5, presence_penalty=1.0, min_new_tokens=4)
    plan = drafting(sequence, 3)
    step, _ = builder_for(plan.sequences[0], sequence, end_ids=(9,)).build(plan)
    assert [(h.row, h.tokens.tolist()[-1], len(h.tokens)) for h in step.histories] == [
        (1, 105, 6),
        (2, 106, 7),
        (3, 107, 8),
        (4, 108, 9),
    ]
    assert [bias.row for bias in step.biases] == [1, 2]
