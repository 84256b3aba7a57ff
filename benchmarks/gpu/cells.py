"""One measured step: its time, and the shares of the device's limits that it reaches."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from benchmarks.gpu.limits import Limits
from benchmarks.harness.steps import decode_step, prompt_step

from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.step import Int32
from headrace.inference.runner.torch.runner import TorchRunner

PREFILLS = 5


@dataclass(frozen=True)
class Cell:
    """The median time of a step."""

    step: str
    sequences: int
    step_s: float
    tokens_per_s: float
    bandwidth_share: float
    """Bytes of weights and KV cache that the step reads, over what a copy would read and write in the time."""
    compute_share: float
    """Operations of the matrices (without attention), over the peak."""


def decode_cell(runner: TorchRunner, limits: Limits, sequences: int, *, context: int, steps: int) -> Cell:
    """Measure steps that decode a token of each sequence, greedily, as the engine would issue them."""
    tables = tables_of(runner, sequences)
    fill(runner, tables, context)
    tokens, times = np.zeros(sequences, np.int32), []
    for index in range(steps + 1):
        step = decode_step(tokens, tables, context + index)
        start_s = time.perf_counter()
        tokens = np.maximum(runner.execute(step).token_ids, 0)
        times.append(time.perf_counter() - start_s)
    step_s = statistics.median(times[1:])
    kv_bytes = sequences * (context + steps / 2) * runner.info.kv_cache_bytes / kv_tokens(runner)
    read_bytes = decode_weight_bytes(runner) + kv_bytes
    return Cell(
        step="decode",
        sequences=sequences,
        step_s=step_s,
        tokens_per_s=sequences / step_s,
        bandwidth_share=read_bytes / step_s / limits.copy_bytes_per_s,
        compute_share=operations(runner.spec, sequences, sequences) / step_s / limits.flops_per_s,
    )


def prefill_cell(runner: TorchRunner, limits: Limits, prompt: int) -> Cell:
    """Measure a prompt in one step, whose last token is sampled."""
    (table,) = tables_of(runner, 1)
    step = prompt_step(prompt_tokens(prompt), table)
    times = []
    for _ in range(PREFILLS + 1):
        start_s = time.perf_counter()
        runner.execute(step)
        times.append(time.perf_counter() - start_s)
    step_s = statistics.median(times[1:])
    return Cell(
        step="prefill",
        sequences=1,
        step_s=step_s,
        tokens_per_s=prompt / step_s,
        bandwidth_share=decode_weight_bytes(runner) / step_s / limits.copy_bytes_per_s,
        compute_share=operations(runner.spec, prompt, 1) / step_s / limits.flops_per_s,
    )


def first_differences(runner: TorchRunner, batches: Sequence[int], *, context: int) -> dict[str, int]:
    """Return for each batch how many of its rows have other logits than the same row computed alone."""
    counts = {}
    for batch in batches:
        tables = tables_of(runner, batch)
        fill(runner, tables, context)
        tokens = np.arange(batch, dtype=np.int32) + 5
        together = runner.logits(decode_step(tokens, tables, context))
        alone = [runner.logits(decode_step(tokens[i : i + 1], tables[i : i + 1], context))[0] for i in range(batch)]
        counts[str(batch)] = sum(not np.array_equal(row, other) for row, other in zip(together, alone, strict=True))
    return counts


def tables_of(runner: TorchRunner, sequences: int) -> Int32:
    """Return blocks for the longest contexts of some sequences."""
    blocks = runner.limits.max_context_tokens // runner.limits.block_tokens
    return np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks)


def fill(runner: TorchRunner, tables: Int32, context: int) -> None:
    """Compute the contexts of all sequences, which differ."""
    for index, table in enumerate(tables):
        for first in range(0, context, runner.limits.max_step_tokens):
            size = min(runner.limits.max_step_tokens, context - first)
            runner.execute(prompt_step(prompt_tokens(size, index + first), table, context=first))


def prompt_tokens(size: int, first: int = 0) -> Int32:
    """Return token ids that differ by where they begin."""
    return (np.arange(size, dtype=np.int32) * 7 + first) % 500


def kv_tokens(runner: TorchRunner) -> int:
    """Return the tokens that the KV cache holds."""
    return runner.limits.num_blocks * runner.limits.block_tokens


def decode_weight_bytes(runner: TorchRunner) -> float:
    """Return the bytes of weights that a step reads: all but the embeddings, of which it reads a few rows."""
    embeddings = 0 if runner.spec.tie_embeddings else runner.spec.vocab_size * runner.spec.hidden_size * 2
    return runner.info.weights_bytes - embeddings


def operations(spec: ModelSpec, tokens: int, rows: int) -> float:
    """Return the operations of the matrices for some tokens and logit rows."""
    head = spec.vocab_size * spec.hidden_size
    layers = spec.num_parameters - head * (1 if spec.tie_embeddings else 2)
    return 2.0 * (tokens * layers + rows * head)
