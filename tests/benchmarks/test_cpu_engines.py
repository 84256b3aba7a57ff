"""The comparison of engines: the protocol with their processes, medians, ratios, limits."""

import dataclasses
import os
import sys
from pathlib import Path

import pytest
from benchmarks.cpu_engines.cells import CELLS, START, make_prompts
from benchmarks.cpu_engines.engines import ROWS, Row
from benchmarks.cpu_engines.limits import FORMATS, Ceilings, Shape, limit_tokens_per_s, shortest_s
from benchmarks.cpu_engines.measure import Contest, Measured, Place, Plan, Sample, generate
from benchmarks.cpu_engines.report import best, failures_text, median_speed, table
from benchmarks.harness.proc import Usage, foreign_cores
from benchmarks.harness.worker_process import Worker, WorkerFailed
from benchmarks.peers.manifest import Manifest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import WAIT_S

N1 = CELLS[0]
SHAPE = Shape(layer_weights=106_000_000, head_weights=28_000_000, kv_values_per_token=11_520)

FAKE_ENGINE = """
from benchmarks.harness.worker import Generation, serve

class Fake:
    def __init__(self, settings):
        self.settings = settings
    def generate(self, prompts, num_tokens):
        print("libraries write to the standard output")
        if self.settings.get("breaks") and num_tokens > 1:
            raise RuntimeError("out of paper")
        return Generation(2.0, [num_tokens + self.settings.get("extra", 0)] * len(prompts))
    def describe(self):
        return {"version": "1"}

serve(Fake)
"""


@pytest.fixture
def script(tmp_path):
    """An engine that only pretends."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE_ENGINE)
    return script


@pytest.fixture
def start(script, tmp_path):
    """`start(settings)` gives a worker with such an engine."""
    workers = []

    def make(**settings):
        worker = Worker(script, python=sys.executable, settings=settings, environment={}, log=tmp_path / "log")
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        worker.close()


def sample(speed, *, cell="n1", seconds=1.0, foreign=0.0):
    return Sample(cell=cell, seconds=seconds, tokens_per_s=speed, read_gb_s=40.0, foreign_cores=foreign)


def measured(name, *speeds):
    row = next(row for row in ROWS if row.name == name)
    return Measured(row=row, samples=[sample(speed) for speed in speeds])


def state_of(worker):
    return Path(f"/proc/{worker.group}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_worker_answers_and_is_frozen_between_commands(start):
    worker = start()
    seconds, description = worker.wait_ready(timeout_s=WAIT_S)
    assert (seconds > 0, description) == (True, {"version": "1"})
    assert generate(worker, [[1, 2], [3, 4]], 5, timeout_s=WAIT_S) == 2.0
    os.waitid(os.P_PID, worker.group, os.WSTOPPED | os.WNOWAIT)
    assert state_of(worker) == "T"


def test_a_worker_that_generates_too_many_tokens_has_failed(start):
    worker = start(extra=1)
    worker.wait_ready(timeout_s=WAIT_S)
    with pytest.raises(WorkerFailed, match=r"Made \[4\] tokens; expected 3"):
        generate(worker, [[1, 2]], 3, timeout_s=WAIT_S)


def test_a_worker_that_fails_gives_the_reason(start):
    worker = start(breaks=True)
    worker.wait_ready(timeout_s=WAIT_S)
    with pytest.raises(WorkerFailed, match="out of paper"):
        generate(worker, [[1, 2]], 3, timeout_s=WAIT_S)


def test_a_worker_that_does_not_start_names_its_log(tmp_path):
    worker = Worker(Path("absent.py"), python=sys.executable, settings={}, environment={}, log=tmp_path / "log")
    with pytest.raises(WorkerFailed, match="log"):
        worker.wait_ready(timeout_s=WAIT_S)
    worker.close()


def test_an_engine_that_fails_does_not_stop_the_others(script, tmp_path):
    def row(name, family, settings):
        return Row(name, family, "bf16", lambda manifest, threads: settings, script=str(script))

    rows = [
        row("ours", "headrace", {}),
        row("good", "llamacpp", {}),
        row("bad", "llamacpp", {"breaks": True}),
        row("gone", "vllm", {}),
    ]
    place = Place(manifest=Manifest(peers={}, models={}), threads=1, logs=tmp_path)
    saved = []
    plan = Plan(cells=(N1,), runs=2, starts=1, retries=0, timeout_s=WAIT_S)
    with Contest(rows, place, plan, tell=lambda text: None, save=saved.append) as contest:
        contest.run()
    ours, good, bad, gone = contest.measured
    assert [sample.cell for sample in ours.samples] == [sample.cell for sample in good.samples] == [START, "n1", "n1"]
    assert good.samples[1].tokens_per_s == N1.output_tokens / 2.0
    assert "out of paper" in bad.failures["n1"]
    assert "not installed" in gone.failures[START]
    assert len(saved) == 2


def test_prompts_are_the_same_for_every_engine_and_different_in_every_run():
    first, again, other = (make_prompts(N1, seed=seed, vocab_size=100) for seed in (1, 1, 2))
    assert first == again != other
    assert [len(prompt) for prompt in first] == [N1.prompt_tokens]


def test_disturbed_measurements_do_not_count_if_there_are_others():
    row = measured("vLLM bf16", 50.0, 52.0)
    row.samples.append(sample(5.0, foreign=0.9))
    assert median_speed(row, "n1") == 51.0


def test_a_row_with_disturbed_measurements_only_is_marked():
    row = measured("vLLM bf16")
    row.samples.append(sample(5.0, foreign=0.9))
    assert "5 (1 run, disturbed)" in table([row], [N1])


def test_the_ratio_takes_the_best_of_each_side_without_guessed_tokens():
    rows = [
        measured("Headrace bf16", 100.0),
        measured("Headrace w4a8", 300.0),
        measured("Headrace w4a8 with guessed tokens", 900.0),
        measured("vLLM bf16", 50.0),
        measured("llama.cpp Q4_0", 100.0),
    ]
    ours, peer = best(rows, "n1", ours=True), best(rows, "n1", ours=False)
    assert (ours[0].row.name, peer[0].row.name) == ("Headrace w4a8", "llama.cpp Q4_0")
    assert "**3.00x**" in table(rows, [N1])
    assert "2.5x: reached" in table(rows, [N1])


def test_failures_are_in_the_table_with_their_reasons():
    row = measured("vLLM bf16")
    row.failures[START] = "no memory"
    assert "| vLLM bf16 | failed | failed |" in table([row], [N1])
    assert failures_text([row]) == "- vLLM bf16, start: no memory"


def test_names_of_rows_are_unique():
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_foreign_cpu_time_is_the_total_without_our_own():
    before = Usage(at_s=10.0, all_s=100.0, own_s=50.0)
    after = Usage(at_s=12.0, all_s=103.0, own_s=52.0)
    assert foreign_cores(before, after) == 0.5


def test_one_sequence_is_bound_by_memory_bandwidth():
    ceilings = Ceilings(read_bytes_per_s=40e9, operations_per_s={"int8": 1e15, "bf16": 1e15})
    weights_s = (SHAPE.layer_weights + SHAPE.head_weights) * 2 / 40e9
    seconds = shortest_s(N1, dataclasses.replace(SHAPE, kv_values_per_token=0), FORMATS["bf16"], ceilings)
    assert seconds == pytest.approx(N1.output_tokens * weights_s)


@given(st.sampled_from(CELLS), st.sampled_from(sorted(FORMATS)), st.floats(1e9, 1e12), st.floats(1e10, 1e13))
def test_a_faster_machine_never_has_a_lower_limit(cell, name, read, operations):
    slow = Ceilings(read_bytes_per_s=read, operations_per_s={"int8": operations, "bf16": operations})
    fast = Ceilings(read_bytes_per_s=2 * read, operations_per_s={"int8": 2 * operations, "bf16": 2 * operations})
    limits = [limit_tokens_per_s(cell, SHAPE, FORMATS[name], ceilings) for ceilings in (slow, fast)]
    assert limits[1] == pytest.approx(2 * limits[0])
