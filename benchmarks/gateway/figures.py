"""From the times of single requests to what the gateway adds. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One streamed answer."""

    ttft_s: float
    """Until the first byte of the body."""
    total_s: float
    num_pieces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The same requests once to the worker itself and once through the gateway, answers in the same order."""

    door: str
    """`sagemaker` or `openai`"""
    streams: int
    direct: tuple[Answer, ...]
    direct_s: float
    """Wall time of all."""
    through: tuple[Answer, ...]
    through_s: float
    gateway_cpu_s: float
    """Processor time of the gateway's process."""


def added_ttft_ms(rounds: Sequence[Round]) -> float:
    """What the gateway adds to the time to the first byte: median of the differences, prompt by prompt."""
    pairs = [pair for one in rounds for pair in zip(one.direct, one.through, strict=True)]
    return statistics.median(through.ttft_s - direct.ttft_s for direct, through in pairs) * 1e3


def throughput_loss(rounds: Sequence[Round]) -> float:
    """Share of the throughput that is lost: median of the rounds. The answers are the same, so times compare."""
    return statistics.median(1 - one.direct_s / one.through_s for one in rounds)


def cpu_us_a_piece(rounds: Sequence[Round]) -> float:
    """Processor time of the gateway for one piece of a stream, its share of everything else included, microseconds."""
    pieces = sum(answer.num_pieces for one in rounds for answer in one.through)
    return sum(one.gateway_cpu_s for one in rounds) / pieces * 1e6


def summary(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """One row for each door and number of streams."""
    cells = sorted({(one.door, one.streams) for one in rounds})
    rows = []
    for door, streams in cells:
        chosen = [one for one in rounds if (one.door, one.streams) == (door, streams)]
        rows.append(
            {
                "door": door,
                "streams": streams,
                "added_ttft_ms": added_ttft_ms(chosen),
                "throughput_loss": throughput_loss(chosen),
                "gateway_cpu_us_a_piece": cpu_us_a_piece(chosen),
            }
        )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows for people."""
    lines = [
        "| door | streams | added TTFT, median | throughput lost | gateway CPU a piece |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['door']} | {row['streams']} | {row['added_ttft_ms']:.2f} ms | {row['throughput_loss']:.1%} "
        f"| {row['gateway_cpu_us_a_piece']:.0f} us |"
        for row in rows
    ]
    return "\n".join(lines)
