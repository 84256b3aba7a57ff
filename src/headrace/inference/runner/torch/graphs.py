"""
CUDA graphs of steps in which each sequence decodes one token.

A graph replays the kernels of one forward pass, which costs the host one launch instead of hundreds. It reads and
writes the same memory each time, so steps are copied into buffers of a fixed number of sequences, the rest of which is
padding.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from headrace.inference.runner.step import StepInput
from headrace.inference.runner.torch.batch import StepTensors

Forward = Callable[[StepTensors], Tensor]
"""The logits of the rows of a step."""

_SMALL_SIZES: Final = (1, 2, 4)


def graph_sizes(max_sequences: int) -> list[int]:
    """Return the numbers of sequences that graphs are captured for: denser where steps are shorter."""
    sizes = [*_SMALL_SIZES, *range(8, 32, 8), *range(32, max_sequences, 16), max_sequences]
    return sorted({size for size in sizes if size <= max_sequences})


def is_decode_step(step: StepInput) -> bool:
    """Return whether a graph can compute a step: one token for each sequence, with its logits, and no adapters."""
    num_tokens = len(step.token_ids)
    return (
        len(step.context_lens) == len(step.rows) == num_tokens
        and len(step.hidden_rows) == 0
        and step.token_types is None
        and (step.adapters is None or bool((step.adapters < 0).all()))
    )


def padding_step(num_sequences: int, table_blocks: int, *, max_context: int, device: torch.device) -> StepTensors:
    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    return StepTensors(
        token_ids=zeros(num_sequences),
        positions=zeros(num_sequences),
        slots=zeros(num_sequences) - 1,
        query_starts=zeros(num_sequences + 1),
        context_lens=zeros(num_sequences),
        block_tables=zeros(num_sequences, table_blocks),
        rows=torch.arange(num_sequences, dtype=torch.int32, device=device),
        hidden_rows=zeros(0),
        max_query=1,
        max_context=max_context,
    )


def copy_into(buffers: StepTensors, step: StepTensors) -> None:
    """Write a decode step into buffers of at least as many sequences; the rest becomes padding."""
    num_sequences = len(step.context_lens)
    buffers.token_ids[:num_sequences].copy_(step.token_ids)
    buffers.positions[:num_sequences].copy_(step.positions)
    buffers.context_lens[:num_sequences].copy_(step.context_lens)
    buffers.block_tables[:num_sequences, : step.block_tables.shape[1]].copy_(step.block_tables)
    buffers.slots[:num_sequences].copy_(step.slots)
    buffers.slots[num_sequences:].fill_(-1)
    buffers.positions[num_sequences:].zero_()
    buffers.context_lens[num_sequences:].zero_()
    buffers.query_starts[: num_sequences + 1].copy_(step.query_starts)
    buffers.query_starts[num_sequences + 1 :].fill_(num_sequences)


@dataclass(frozen=True, slots=True)
class _Captured:
    buffers: StepTensors
    replay: Callable[[], Tensor]


class DecodeGraphs:
    """The CUDA graphs of decode steps, one for each size."""

    def __init__(
        self,
        forward: Forward,
        *,
        max_sequences: int,
        table_blocks: int,
        max_context: int,
        device: torch.device,
        capture: "Capture | None" = None,
    ) -> None:
        """
        Capture the graphs, largest first, so that the smaller ones reuse its memory.

        `table_blocks` and `max_context` are the blocks and tokens of the longest sequence; `capture` records a function
        (by default as a CUDA graph).
        """
        capture = capture or cuda_capture()
        self._captured: dict[int, _Captured] = {}
        for size in reversed(graph_sizes(max_sequences)):
            buffers = padding_step(size, table_blocks, max_context=max_context, device=device)
            self._captured[size] = _Captured(buffers, capture(partial(forward, buffers)))
        self._sizes = sorted(self._captured)

    def __call__(self, step: StepTensors) -> Tensor:
        """Return the logits (S, V) of a decode step. The next call overwrites them."""
        num_sequences = len(step.context_lens)
        captured = self._captured[self._sizes[bisect_left(self._sizes, num_sequences)]]
        copy_into(captured.buffers, step)
        return captured.replay()[:num_sequences]


Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Records the device operations of a function, and returns a function that replays them."""


def cuda_capture() -> Capture:
    pool = torch.cuda.graph_pool_handle()

    def capture(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries allocate their workspaces and Triton compiles before the capture
            function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            output = function()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay

    return capture
