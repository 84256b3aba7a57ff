"""Sequences in the background: all others go first, and get their slots and blocks."""

from .test_scheduler import make_scheduler, make_sequence, run_all, run_step


def background(arrival_id: int, prompt: list[int], **more: int):
    sequence = make_sequence(arrival_id, prompt, **more)
    sequence.is_background = True
    return sequence


def test_a_newer_request_is_admitted_before_older_ones_in_the_background():
    scheduler = make_scheduler(max_num_seqs=2)
    for sequence in (background(0, [1, 2]), background(1, [3, 4]), make_sequence(2, [5, 6])):
        scheduler.add(sequence)
    plan, _ = run_step(scheduler)
    assert [sequence.arrival_id for sequence in plan.admitted] == [2, 0]
    assert len(run_all(scheduler)) == 3


def test_the_newest_sequences_in_the_background_give_up_their_slots_and_end_later():
    scheduler = make_scheduler(max_num_seqs=3)
    olds = [background(number, [number + 1] * 5) for number in range(3)]
    for sequence in olds:
        scheduler.add(sequence)
    run_step(scheduler)
    for number in (3, 4):
        scheduler.add(make_sequence(number, [90 + number]))

    plan, _ = run_step(scheduler)

    assert [sequence.arrival_id for sequence in plan.preempted] == [2, 1]
    assert [sequence.arrival_id for sequence in plan.admitted] == [3, 4]
    assert {sequence.arrival_id for sequence in run_all(scheduler)} == set(range(5))
    assert all(sequence.num_output_tokens == 8 for sequence in olds)


def test_a_request_gets_blocks_that_sequences_in_the_background_hold():
    scheduler = make_scheduler(num_blocks=8, max_num_seqs=4)
    scheduler.add(background(0, list(range(20)), max_new=4))  # 6 of the 8 blocks
    run_step(scheduler)
    scheduler.add(make_sequence(1, list(range(100, 116)), max_new=4))  # 5 blocks

    plan, _ = run_step(scheduler)

    assert ([s.arrival_id for s in plan.preempted], [s.arrival_id for s in plan.admitted]) == ([0], [1])
    assert [sequence.arrival_id for sequence in run_all(scheduler)] == [1, 0]


def test_nothing_is_preempted_for_the_background_or_while_there_is_room():
    scheduler = make_scheduler(max_num_seqs=2)
    scheduler.add(make_sequence(0, [1]))
    scheduler.add(background(1, [2]))
    run_step(scheduler)
    scheduler.add(background(2, [3]))
    assert run_step(scheduler)[0].preempted == []
    scheduler = make_scheduler(max_num_seqs=2)
    scheduler.add(background(0, [1]))
    run_step(scheduler)
    scheduler.add(make_sequence(1, [2]))
    plan, _ = run_step(scheduler)
    assert ([s.arrival_id for s in plan.admitted], plan.preempted) == ([1], [])
