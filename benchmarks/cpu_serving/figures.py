"""Figures of one run from the load tool's output. Pure functions."""

import math
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

from benchmarks.cpu_serving.cells import Cell
from benchmarks.cpu_serving.load_tool import ToolRun

from headrace.tools.bench.measure import percentile


class WrongOutput(Exception):
    """A server generated another number of tokens than requested: its figures would not be comparable."""


_RECOUNT_TOKENS = 4
"""
Tolerance of the tool's token count. llama-server reports its usage in an event that the tool skips; the tool
then encodes the text again, which gives fewer tokens (half, where they repeat). So the events of the answer count, too:
there is at most one for each token, and one fewer where a character takes two tokens.
"""


def run_figures(cell: Cell, run: ToolRun) -> dict[str, float]:
    """
    Return the figures of one run by name; names carry their unit.

    Raises:
        WrongOutput: Prompts or answers have another length than the cell.
    """
    result = run.result
    check_lengths(cell, result)
    tokens = cell.total_output_tokens
    figures = {
        "output_tokens_per_s": tokens / result["duration"],
        "ttft_p50_ms": result["p50_ttft_ms"],
        "ttft_p99_ms": result["p99_ttft_ms"],
        "itl_p50_ms": result["p50_itl_ms"],
        "itl_p99_ms": result["p99_itl_ms"],
        "tpot_p50_ms": result["p50_tpot_ms"],
        "server_cpu_s_per_1k_tokens": 1000 * run.server_cpu_s / tokens,
        "tool_cpu_s_per_1k_tokens": 1000 * run.tool_cpu_s / tokens,
        "foreign_cores": run.foreign_cores,
        "seconds": result["duration"],
    }
    if cell.num_late:
        figures |= late_figures(result)
    return figures


def check_lengths(cell: Cell, result: Mapping[str, Any]) -> None:
    """
    Check that every prompt and every answer has the cell's length.

    Raises:
        WrongOutput: One of them has not.
    """
    inputs, outputs = zip(*cell.lengths, strict=True)
    events = [len(gaps) + 1 for gaps in result["itls"]]
    answers = [max(counts) for counts in zip(result["output_lens"], events, strict=True)]
    checks = (
        ("prompt", inputs, result["input_lens"], 0),
        ("answer", outputs, answers, _RECOUNT_TOKENS),
    )
    for name, requested, reported, tolerance in checks:
        for expected, counted in zip(requested, reported, strict=True):
            if abs(expected - counted) > tolerance:
                raise WrongOutput(f"{cell.name}: {name} of {counted} tokens; expected {expected}.")


def late_figures(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the longest gaps of the streams between sending the last request and its first token."""
    *streams, late = zip(result["start_times"], result["ttfts"], result["itls"], strict=True)
    sent_s = late[0]
    answered_s = sent_s + late[1]
    gaps = [
        end_s - begin_s
        for start_s, ttft_s, itls in streams
        for begin_s, end_s in pairwise(accumulate(itls, initial=start_s + ttft_s))
        if end_s > sent_s and begin_s < answered_s
    ]
    return {
        "late_ttft_ms": 1e3 * late[1],
        "gap_max_ms": 1e3 * max(gaps, default=math.nan),
        "gap_p99_ms": 1e3 * percentile(sorted(gaps), 0.99) if gaps else math.nan,
    }
