"""The benchmark of a GPU measures a tiny network on a CPU, and outlives stages that fail or hang."""

import json
import sys
import time

import pytest
from benchmarks.gpu.measure import measure
from benchmarks.gpu.report import table
from benchmarks.gpu.run import TINY, Results, _module, measure_first_token, run_stage
from benchmarks.gpu.stages import SIZES, STAGES
from benchmarks.synthetic.make import write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu") / "model"
    write_folder(TINY, folder)
    return folder


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "results")


def later():
    return time.monotonic() + 600


def script(text):
    return [sys.executable, "-S", "-c", text]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_every_cell_is_measured_on_a_cpu(folder, results, stage):
    measure(folder, stage, SIZES["tiny"], device="cpu", emit=lambda result: results.add(stage.name, result))
    cells = [record for record in results.records if record["kind"] == "cell"]
    steps = [("decode", 1), ("decode", 2), ("decode", 5), ("prefill", 1)]
    assert [(cell["step"], cell["sequences"]) for cell in cells] == steps
    assert all(cell["step_s"] > 0 and cell["bandwidth_share"] > 0 and cell["compute_share"] > 0 for cell in cells)
    assert not results.has_errors
    assert f"| {stage.name} | decode | 5 |" in (results.folder / "gpu.md").read_text()


def test_the_first_token_of_a_process_is_timed(folder, results):
    command = _module("first_token", str(folder), "cpu", "fp32")
    measure_first_token(results, "tiny", command, None, deadline_s=later())
    (record,) = results.records
    assert record["seconds"] > 0
    assert "after the start of the process (tiny)" in table(results.records)


def test_results_before_a_failure_are_kept_and_the_failure_is_named(results):
    text = """
import sys
print('{"kind": "limits", "copy_bytes_per_s": 2e12, "flops_per_s": 1e15}', flush=True)
sys.exit("CUDA error: an illegal memory access")
"""
    run_stage(results, "broken", script(text), 60, deadline_s=later())
    assert [record["kind"] for record in json.loads((results.folder / "gpu.json").read_text())] == ["limits", "error"]
    page = (results.folder / "gpu.md").read_text()
    assert "Copy 2.00 TB/s" in page
    assert "- broken, stage: ended with status 1: CUDA error: an illegal memory access" in page


def test_a_stage_that_hangs_is_killed_and_later_ones_run_until_the_deadline(results):
    hangs = 'import time; print(\'{"kind": "model"}\', flush=True); time.sleep(600)'
    run_stage(results, "hangs", script(hangs), 1, deadline_s=later())
    run_stage(results, "next", script('print(\'{"kind": "model"}\')'), 60, deadline_s=later())
    run_stage(results, "late", script('print(\'{"kind": "model"}\')'), 60, deadline_s=time.monotonic())
    found = [(record["stage"], record["kind"], record.get("message")) for record in results.records]
    assert found[-3:] == [
        ("hangs", "error", "killed after 1 s"),
        ("next", "model", None),
        ("late", "error", "skipped, no time was left"),
    ]
