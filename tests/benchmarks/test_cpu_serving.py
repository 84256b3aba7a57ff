"""The parts of the serving benchmark that decide: traces, figures, ratios, goals, tables, /proc."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cpu_serving.cells import CELLS, Cell, choose_cells, trace_lines
from benchmarks.cpu_serving.figures import WrongOutput, late_figures, run_figures
from benchmarks.cpu_serving.load_tool import ToolRun
from benchmarks.cpu_serving.one_client import figures, summary
from benchmarks.cpu_serving.report import Goal, judge, medians, write_report
from benchmarks.cpu_serving.run import without_folders
from benchmarks.cpu_serving.servers import ROWS, choose_rows
from benchmarks.harness.proc import TaskUse, read_tasks, session_cpu_s, session_pids, session_use
from benchmarks.peers.manifest import InstalledPeer, Manifest
from hypothesis import given
from hypothesis import strategies as st

LATE = next(cell for cell in CELLS if cell.kind == "late")
C8 = next(cell for cell in CELLS if cell.name == "c8")


def installed() -> Manifest:
    peer = InstalledPeer(python="/peer/bin/python", tools="/peer/tools", requirements=(), versions={})
    forms = ("gguf", "gguf-q4_0", "hf-bf16")
    return Manifest(peers={"llamacpp": peer, "vllm": peer}, models={form: f"/models/{form}" for form in forms})


def tool_run(cell: Cell, **changes: Any) -> ToolRun:
    result = {
        "input_lens": [cell.prompt_tokens] * cell.num_requests,
        "output_lens": [cell.output_tokens] * cell.num_requests,
        "itls": [[0.01] * 9] * cell.num_requests,
        "duration": 2.0,
        **{f"p{share}_{name}_ms": 1.0 for share in (50, 99) for name in ("ttft", "itl", "tpot")},
        **changes,
    }
    return ToolRun(result=result, tool_cpu_s=0.5, server_cpu_s=3.0, foreign_cores=0.0)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_trace_has_every_request_with_its_lengths(cell: Cell) -> None:
    entries = [json.loads(line) for line in trace_lines(cell, seed=1, number=0)]
    assert len(entries) == cell.total_requests
    assert sum(entry["output_length"] for entry in entries) == cell.total_output_tokens
    for entry in entries:
        assert len(entry["hash_ids"]) * cell.piece_tokens >= entry["input_length"]


@given(seed=st.integers(0, 50), number=st.integers(0, 50))
def test_no_prompt_occurs_in_two_runs(seed: int, number: int) -> None:
    def ids(seed: int, number: int) -> set[int]:
        return {
            i
            for cell in CELLS
            for line in trace_lines(cell, seed=seed, number=number)
            for i in json.loads(line)["hash_ids"]
        }

    assert ids(seed, number).isdisjoint(ids(seed, number + 1))
    assert ids(seed, number).isdisjoint(ids(seed + 1, number))


def test_prompts_share_exactly_the_system_prompt() -> None:
    shared = next(cell for cell in CELLS if cell.kind == "shared")
    first, second = (json.loads(line)["hash_ids"] for line in trace_lines(shared, seed=1, number=0)[:2])
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_the_late_prompt_arrives_last_and_alone() -> None:
    entries = [json.loads(line) for line in trace_lines(LATE, seed=1, number=0)]
    assert [entry["timestamp"] for entry in entries] == [0] * LATE.num_requests + [LATE.late_at_s]
    assert entries[-1]["input_length"] == LATE.late_prompt_tokens


def test_speed_counts_the_requested_tokens() -> None:
    figures = run_figures(C8, tool_run(C8))
    assert figures["output_tokens_per_s"] == C8.total_output_tokens / 2.0
    assert figures["server_cpu_s_per_1k_tokens"] == pytest.approx(3000 / C8.total_output_tokens)


def test_an_answer_that_the_tool_counts_one_token_short_is_complete() -> None:
    lengths = [C8.output_tokens - 1, *[C8.output_tokens] * (C8.num_requests - 1)]
    assert run_figures(C8, tool_run(C8, output_lens=lengths)) == run_figures(C8, tool_run(C8))


def test_an_answer_that_the_tool_counts_half_is_complete_if_its_events_are() -> None:
    lengths = [C8.output_tokens // 2, *[C8.output_tokens] * (C8.num_requests - 1)]
    gaps = [[0.01] * (C8.output_tokens - 2), *[[0.01]] * (C8.num_requests - 1)]
    assert run_figures(C8, tool_run(C8, output_lens=lengths, itls=gaps)) == run_figures(C8, tool_run(C8))


@pytest.mark.parametrize(("field", "off"), [("output_lens", 20), ("input_lens", 1)])
def test_a_run_with_shorter_prompts_or_answers_is_refused(field: str, off: int) -> None:
    length = C8.output_tokens if field == "output_lens" else C8.prompt_tokens
    lengths = [length - off, *[length] * (C8.num_requests - 1)]
    with pytest.raises(WrongOutput, match=str(length - off)):
        run_figures(C8, tool_run(C8, **{field: lengths}))


def test_only_gaps_while_the_late_prompt_waits_count() -> None:
    # Tokens of the stream come at 1.0, 2.0, 2.1, 2.6 and 5.6 s. The late prompt waits from 2.05 to 2.5 s.
    result = {"start_times": [0.0, 2.05], "ttfts": [1.0, 0.45], "itls": [[1.0, 0.1, 0.5, 3.0], []]}
    figures = late_figures(result)
    assert figures["gap_max_ms"] == pytest.approx(500)
    assert figures["gap_p99_ms"] == pytest.approx(496)
    assert figures["late_ttft_ms"] == pytest.approx(450)


def test_streams_that_had_ended_leave_no_gap() -> None:
    assert math.isnan(late_figures({"start_times": [0.0, 9.0], "ttfts": [1.0, 1.0], "itls": [[1.0], []]})["gap_max_ms"])


def test_a_goal_compares_our_best_row_with_the_best_peer() -> None:
    speed = Goal(cell="c8", figure="output_tokens_per_s", against="best peer", bound=2.0)
    verdict = judge(speed, ours={"a": 500, "b": 300}, peers={"x": 100, "y": 250})
    assert verdict is not None
    assert (verdict.measured, verdict.hit) == (2.0, True)
    wait = Goal(cell="c8", figure="ttft_p50_ms", against="best peer", bound=0.5)
    verdict = judge(wait, ours={"a": 60, "b": 90}, peers={"x": 100, "y": 250})
    assert verdict is not None
    assert (verdict.measured, verdict.hit) == (0.6, False)


def test_a_goal_without_a_peer_has_no_verdict() -> None:
    goal = Goal(cell="c8", figure="ttft_p50_ms", against="best peer", bound=0.5)
    assert judge(goal, ours={"a": 60}, peers={}) is None


def test_the_median_leaves_out_runs_that_failed() -> None:
    runs = [{"row": "a", "cell": "c1", "figures": {"x": value}} for value in (1.0, 5.0, 3.0)]
    assert medians([*runs, {"row": "a", "cell": "c1", "error": "broken"}]) == {"c1": {"a": {"x": 3.0}}}


def test_the_report_names_ratios_misses_and_failures() -> None:
    def run(row: str, speed: float) -> dict[str, Any]:
        figures = run_figures(C8, tool_run(C8)) | {"output_tokens_per_s": speed}
        return {"row": row, "cell": "c8", "round": 0, "figures": figures, "pss_bytes": 2**20, "peak_rss_bytes": 2**20}

    page = write_report(
        {
            "environment": {"cpu": "A CPU", "cpus_usable": 2, "time": "now"},
            "load_tool": "tool",
            "seed": 1,
            "rounds": 1,
            "starts": [],
            "runs": [
                run("headrace-w4a8", 800.0),
                run("llama-q4_0", 400.0),
                {"row": "vllm-bf16", "cell": "c8", "round": 0, "error": "It fell over."},
            ],
        }
    )
    assert "| Headrace w4a8 | 1 | 2.00 | 800 |" in page
    assert "| C=8 | output_tokens_per_s | ≥ 2.6 x the best peer | 2.00 | **missed** |" in page
    assert "vllm-bf16, c8, round 0: It fell over." in page


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_prefix_caching_is_on_only_where_prompts_share_a_prefix(row: Any) -> None:
    off = {"--no-enable-prefix-caching", "--no-cache-prompt"}
    for cell in CELLS:
        arguments = set(row.launch(cell, installed(), 2).arguments)
        assert bool(arguments & off) == (cell.kind != "shared")


def test_cells_of_one_kind_share_a_process_where_the_settings_are_the_same() -> None:
    launches = {row.name: {row.launch(cell, installed(), 2) for cell in CELLS if cell.kind == "load"} for row in ROWS}
    assert len(launches["headrace-w4a8"]) == len(launches["vllm-bf16"]) == 1
    assert len(launches["llama-q4_0"]) == 4


def test_a_family_names_all_its_servers() -> None:
    assert {row.family for row in choose_rows("headrace")} == {"headrace"}
    assert len(choose_rows("headrace")) > 1
    assert choose_rows("") == ROWS
    assert choose_cells("") == CELLS


@pytest.mark.parametrize("choose", [choose_rows, choose_cells])
def test_an_unknown_name_is_refused_with_the_known_ones(choose: Any) -> None:
    with pytest.raises(KeyError, match="expected some of"):
        choose("nonsense")


def test_cpu_time_and_memory_are_those_of_the_whole_session(tmp_path: Path) -> None:
    for pid, session in ((10, 10), (11, 10), (12, 99)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        zeros = " ".join(["0"] * 7)
        (folder / "fd").mkdir()
        (folder / "stat").write_text(f"{pid} (a (strange) name) S 1 {session} {session} {zeros} 0 150 50 {zeros}")
        (folder / "smaps_rollup").write_text("header line here\nRss: 300 kB\nPss: 200 kB\n")
        (folder / "status").write_text("Name:\tx\nVmHWM:\t 400 kB\n")
    (tmp_path / "self").mkdir()
    assert session_pids(10, proc=tmp_path) == [10, 11]
    assert session_cpu_s(10, proc=tmp_path) > 0
    memory = session_use(10, proc=tmp_path).memory
    assert memory == {"rss_bytes": 600 * 1024, "pss_bytes": 400 * 1024, "peak_rss_bytes": 800 * 1024}


def test_a_result_contains_no_path_of_the_machine() -> None:
    text = without_folders(
        '["/home/me/peers/bin/x", "/data/model.gguf"]', {"PEERS": Path("/home/me/peers"), "MODELS": Path("/data")}
    )
    assert text == '["PEERS/bin/x", "MODELS/model.gguf"]'


def test_a_round_of_one_client_has_both_ceilings_and_the_costs_of_the_event_loop() -> None:
    totals = {"step_seconds_total": 0.8, "step_thread_seconds_total": 1.2, "steps_total": 129.0}
    used = {10: TaskUse(cpu_s=0.0128, wakeups=128, preemptions=64), 11: TaskUse(cpu_s=0.9), 12: TaskUse(cpu_s=0.38)}
    found = figures(128, 1.0, 0.64, totals, used, [0.2], loop=10, foreign=0.0)
    assert (found.tokens_per_s, found.bare_tokens_per_s, found.step_tokens_per_s) == (128, 200, 160)
    assert (found.threads, found.steps, found.loop_wakeups_per_token) == (pytest.approx(1.5), 129, 1)
    assert found.loop_ms_per_token == pytest.approx(0.1)
    assert found.other_ms_per_token == pytest.approx(10)
    assert summary([found])["ratio_to_bare"] == pytest.approx(0.64)
    assert summary([found])["ratio_to_steps"] == pytest.approx(0.8)


def test_the_use_of_a_thread_is_read_from_proc(tmp_path: Path) -> None:
    task = tmp_path / "7" / "task" / "8"
    task.mkdir(parents=True)
    (task / "schedstat").write_text("1500000000 20 3\n")
    (task / "status").write_text("Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n")
    (tmp_path / "7" / "task" / "9").mkdir()  # it has ended
    assert read_tasks(7, proc=tmp_path) == {8: TaskUse(cpu_s=1.5, wakeups=5, preemptions=2)}
