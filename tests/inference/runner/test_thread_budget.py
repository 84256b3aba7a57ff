"""Threads synchronise, and their number adapts to other processes on the cores, without changing the answer."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from headrace._native import ThreadBudget, time_runs
from tests.inference.runner.native_models import load, small_spec
from tests.inference.runner.steps import make_step
from tests.inference.runner.weights import random_weights

MILLISECOND = 1_000_000


def sizes(budget: ThreadBudget, *, start_ms: int, stop_ms: int, lost_share: float) -> list[int]:
    """Return the threads of consecutive runs of 2 ms that lose `lost_share` of their time if they have two threads."""
    result = []
    for now in range(start_ms * MILLISECOND, stop_ms * MILLISECOND, 2 * MILLISECOND):
        result.append(budget.size(now))
        lost = lost_share if result[-1] > 1 else 0.0
        budget.record(now + 2 * MILLISECOND, 2 * MILLISECOND, int(lost * 2 * MILLISECOND))
    return result


def test_all_threads_work_on_a_quiet_machine():
    assert set(sizes(ThreadBudget(2), start_ms=0, stop_ms=2000, lost_share=0.1)) == {2}


def test_a_thread_that_costs_more_than_it_gains_is_dropped_and_retried_with_backoff():
    seen = sizes(ThreadBudget(2), start_ms=0, stop_ms=4000, lost_share=0.7)
    assert seen[0] == 2
    assert seen[10] == 1
    trials = [i for i in range(1, len(seen)) if seen[i] == 2 and seen[i - 1] == 1]
    pauses = np.diff(trials)
    assert len(trials) >= 4
    assert (np.diff(pauses) >= 0).all()
    assert seen.count(2) < len(seen) * 0.1


def test_the_thread_comes_back_when_the_machine_is_quiet_again():
    budget = ThreadBudget(2)
    assert sizes(budget, start_ms=0, stop_ms=1000, lost_share=0.7)[-1] == 1
    assert set(sizes(budget, start_ms=2000, stop_ms=4000, lost_share=0.0)) == {2}


def test_many_threads_drop_one_at_a_loss_that_two_would_tolerate():
    few, many = ThreadBudget(2), ThreadBudget(16)
    for budget in (few, many):
        budget.record(0, 20 * MILLISECOND, 5 * MILLISECOND)
    assert few.size(0) == 2
    assert many.size(0) == 15


def test_waking_the_threads_of_short_steps_costs_no_thread():
    budget = ThreadBudget(16)
    for now in range(0, 1000 * MILLISECOND, MILLISECOND // 2):
        assert budget.size(now) == 16
        budget.record(now + MILLISECOND // 2, MILLISECOND // 2, MILLISECOND // 10)


def test_one_thread_is_always_left():
    budget = ThreadBudget(3)
    for _ in range(10):
        budget.record(0, 20 * MILLISECOND, 20 * MILLISECOND)
    assert budget.size(0) == 1


@pytest.mark.parametrize("num_threads", [1, 2, 3, 4, 5, 7, 16, 17])
def test_no_thread_passes_a_barrier_before_the_others_reach_it(num_threads):
    assert time_runs(num_threads, num_runs=2, num_barriers=20, checks=True) > 0


@contextmanager
def busy_process() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def test_more_threads_than_cores_among_busy_processes_give_the_same_bits(tmp_path):
    spec, rng = small_spec(), np.random.default_rng(0)
    weights, tokens = random_weights(spec), rng.integers(0, 333, 400).tolist()
    blocks = list(range(13))
    steps = [make_step((tokens[:300], 0, blocks), all_rows=True)]
    steps += [make_step((tokens[at : at + 1], at, blocks), all_rows=True) for at in range(300, 400)]
    alone = load(spec, weights, tmp_path, threads=1)
    expected = [alone.logits(step) for step in steps]
    cores = len(os.sched_getaffinity(0))
    crowd = load(spec, weights, tmp_path, threads=cores + 2)
    with ExitStack() as stack:
        for _ in range(cores):
            stack.enter_context(busy_process())
        for step, wanted in zip(steps, expected, strict=True):
            np.testing.assert_array_equal(crowd.logits(step), wanted)
