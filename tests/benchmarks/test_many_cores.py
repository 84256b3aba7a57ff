"""The benchmark of many cores runs on two, and its model of a step counts what the runtime does."""

from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.harness.steps import decode_step, prompt_step
from benchmarks.many_cores import run
from benchmarks.many_cores.machine import describe_placement
from benchmarks.many_cores.report import page, possible_efficiency
from benchmarks.many_cores.run import Run, default_thread_counts, load, tile_rows
from benchmarks.many_cores.work import split_step
from benchmarks.synthetic.make import SHAPES, file_of, write_gguf

from headrace.inference.models.loading import load_model
from tests.inference.runner.native_models import small_spec

SMALL = {"layers": 2, "hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "head_dim": 32, "vocab": 512}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("many_cores") / "small.gguf"
    write_gguf(file_of(replace(SHAPES["smollm2-135m"], **SMALL)), path)
    return path


SMOLLM2 = small_spec(
    num_layers=30, hidden_size=576, intermediate_size=1536, num_heads=9, num_kv_heads=3, head_dim=64, vocab_size=49152
)


def test_a_run_on_one_two_and_more_threads_than_cores_fills_the_page(model_path):
    trial = Run(Namespace(threads=[1, 2, 4], dtypes=["w4a8", "bf16"], cell_seconds=0.0), None)
    trial.add_model("smollm2-135m", model_path)
    assert len(trial.cells) == 3 * 2 * (len(run.BATCHES) + 1)
    assert all(cell.tokens_per_s > 0 for cell in trial.cells)
    result = {
        "machine": {"cpu": "CPU", "physical_cores": 2, "isa": "avx2"},
        "placement": trial.placement,
        "date": "2026-11-29",
        "seconds": 1,
        "versions": {"llama.cpp": "b1"},
        "synchronisation_us": {n: run.synchronisation_us(min(n, 2), num_runs=1) for n in (1, 2, 4)},
        "cells": [vars_of(cell) for cell in trial.cells],
    }
    text = page(result)
    assert text.count("| Headrace w4a8 | decode 8 |") == 2
    assert (
        "| tokens/s | | 1 thread | 2 threads | 4 threads |\n|---|---|---:|---:|---:|\n| Headrace w4a8 | decode 1 |"
        in text
    )
    assert "| 4 threads | | busy | barriers |" in text


def vars_of(cell):
    return {name: getattr(cell, name) for name in cell.__slots__}


@pytest.mark.parametrize("rows", [1, 2, 3, 40])
@pytest.mark.parametrize("sequences", ["one", "all"])
def test_the_model_has_as_many_barriers_as_the_step(rows, sequences, model_path):
    runner = load(load_model(str(model_path)), "w4a8", 2, model_path.parent / "packed")
    tokens = np.arange(rows, dtype=np.int32)
    if sequences == "all":
        step, count = decode_step(tokens, np.arange(rows, dtype=np.int32)[:, None], 5), rows
    else:
        step, count = prompt_step(tokens, np.arange(2, dtype=np.int32), rows=range(rows)), 1
    runner.execute(step)
    split = split_step(
        runner.spec,
        rows=rows,
        sequences=count,
        logit_rows=rows,
        context=5,
        threads=2,
        tile_rows=tile_rows("avx2", "w4a8"),
    )
    assert runner.num_barrier_rounds == split.barriers


def test_eighteen_panels_keep_sixteen_threads_busy_once_rows_are_split():
    few = split_step(SMOLLM2, rows=8, sequences=8, context=128, threads=16, tile_rows=8)
    many = split_step(SMOLLM2, rows=64, sequences=64, context=128, threads=16, tile_rows=8)
    assert few.idle_phases["o"] == few.idle_phases["down"] == 18 / 32
    assert "o" not in many.idle_phases
    assert few.busy < 0.8
    assert many.busy > 0.9


def test_one_thread_is_always_busy_and_blocks_of_a_prompt_wait_for_the_last():
    for rows in (1, 8, 64, 512):
        alone = split_step(SMOLLM2, rows=rows, sequences=1, context=0, threads=1, tile_rows=8)
        assert alone.busy == pytest.approx(1)
        assert alone.barriers == 0
    assert 0.8 < split_step(SMOLLM2, rows=512, sequences=1, context=0, threads=16, tile_rows=8).busy < 1


def test_the_possible_efficiency_has_idle_threads_barriers_and_the_start_of_a_run():
    first = {"tokens_per_s": 100.0, "threads": 1}
    cell = {"cell": "decode 8", "threads": 4, "split": {"busy": 0.5, "barriers": 1000}}
    # 80 ms alone: 20 ms on 4 threads, 40 ms if half of them are idle, and 10 ms of synchronisation.
    assert possible_efficiency(cell, first, {4: {"barrier": 9.0, "run": 1000.0}}) == pytest.approx(20 / 50)


def test_threads_are_counted_in_powers_of_two_and_all_cores():
    assert default_thread_counts(16) == [1, 2, 4, 8, 16]
    assert default_thread_counts(6) == [1, 2, 4, 6]


def test_the_placement_reads_nodes_pages_and_affinities(tmp_path):
    for node, cpus in (("node0", "0-7"), ("node1", "8-15")):
        folder = tmp_path / "sys/devices/system/node" / node
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    for task, cpus in (("1", "0-15"), ("2", "3")):
        folder = tmp_path / "proc/task" / task
        folder.mkdir(parents=True)
        (folder / "status").write_text(f"Name:\tx\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0-1\n")
    lines = "7f00 default anon=512 N0=256 N1=512 kernelpagesize_kB=4\n7f01 default N1=1 kernelpagesize_kB=2048\n"
    (tmp_path / "proc/numa_maps").write_text(lines)
    found = describe_placement(sys_fs=tmp_path / "sys", proc=tmp_path / "proc")
    assert found["numa_nodes"] == {"0": "0-7", "1": "8-15"}
    assert found["resident_gb_by_node"] == {"0": 0.001, "1": 0.004}
    assert (found["threads"], found["pinned_threads"]) == (2, 1)
