"""The overhead of the gateway, from the times of single requests. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import results


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The times of one streamed answer."""

    ttft_s: float
    """Until the first byte of the body."""
    total_s: float
    num_pieces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The same requests directly to the worker and through the gateway, answers in the same order."""

    api: str
    """`sagemaker` or `openai`"""
    streams: int
    direct: tuple[Answer, ...]
    direct_s: float
    """Wall time of all requests."""
    through: tuple[Answer, ...]
    through_s: float
    gateway_cpu_s: float
    """CPU time of the gateway's process."""


def added_ttft_ms(rounds: Sequence[Round]) -> float:
    """Return the added time to the first byte: the median of the differences, prompt by prompt."""
    pairs = [pair for measured in rounds for pair in zip(measured.direct, measured.through, strict=True)]
    return statistics.median(through.ttft_s - direct.ttft_s for direct, through in pairs) * 1e3


def throughput_loss(rounds: Sequence[Round]) -> float:
    """Return the lost share of the throughput: the median of the rounds. Answers are equal, so times are comparable."""
    return statistics.median(1 - measured.direct_s / measured.through_s for measured in rounds)


def cpu_us_a_piece(rounds: Sequence[Round]) -> float:
    """Return the gateway's CPU time per piece of a stream, all else included, microseconds."""
    pieces = sum(answer.num_pieces for measured in rounds for answer in measured.through)
    return sum(measured.gateway_cpu_s for measured in rounds) / pieces * 1e6


def summary(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return one row per API and number of streams."""
    rows = []
    for api, streams in sorted({(measured.api, measured.streams) for measured in rounds}):
        chosen = [measured for measured in rounds if (measured.api, measured.streams) == (api, streams)]
        row: dict[str, Any] = {"api": api, "streams": streams, "added_ttft_ms": added_ttft_ms(chosen)}
        row |= {"throughput_loss": throughput_loss(chosen), "gateway_cpu_us_a_piece": cpu_us_a_piece(chosen)}
        rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    header = ("API", "streams", "added TTFT, median", "throughput lost", "gateway CPU a piece")
    cells = (
        (
            row["api"],
            row["streams"],
            f"{row['added_ttft_ms']:.2f} ms",
            f"{row['throughput_loss']:.1%}",
            f"{row['gateway_cpu_us_a_piece']:.0f} us",
        )
        for row in rows
    )
    return results.table(header, cells)
