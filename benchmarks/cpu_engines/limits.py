"""
The hardware's limit: the shortest time in which a cell could be done, from bytes to read and operations to do.

Prompts: the larger of reading all weights once and of the multiplications of all prompt tokens (the head only for one
row a prompt). Then each further token of all sequences: the larger of reading the weights and the sequences' KV cache,
and of the multiplications. Attention's own arithmetic, norms, sampling and everything outside the model count as zero,
and reading and arithmetic overlap perfectly; so no engine can reach it.
"""

from dataclasses import dataclass

from benchmarks.cpu_engines.cells import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a network that determine its speed."""

    layer_weights: int
    """Weights of all layers."""
    head_weights: int
    """Weights of the output head."""
    kv_values_per_token: int
    """Numbers that one token adds to the KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The storage of weights and KV, and the instructions that multiply them."""

    layer_bits: float
    head_bits: float
    kv_bytes: float
    """Bytes per number, including its share of the scale."""
    multiplies: str
    """int8 or bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The highest rates that this machine can reach."""

    read_bytes_per_s: float
    operations_per_s: dict[str, float]
    """By type; a multiplication and an addition are two."""


FORMATS: dict[str, Format] = {
    "bf16": Format(layer_bits=16, head_bits=16, kv_bytes=2, multiplies="bf16"),
    "w8a8": Format(layer_bits=8, head_bits=8, kv_bytes=1 + 4 / 64, multiplies="int8"),
    "w4a8": Format(layer_bits=5, head_bits=8, kv_bytes=1 + 4 / 64, multiplies="int8"),
}
"""Headrace's formats, as it runs them: int8 KV with int8 arithmetic; the head of w4a8 has 8 bits."""


def shortest_s(cell: Cell, shape: Shape, stored: Format, ceilings: Ceilings) -> float:
    """Return the seconds below which this cell cannot be done."""
    weight_bytes = (shape.layer_weights * stored.layer_bits + shape.head_weights * stored.head_bits) / 8
    kv_bytes = shape.kv_values_per_token * stored.kv_bytes
    rate = ceilings.operations_per_s[stored.multiplies]
    prompt_tokens = cell.num_prompts * cell.prompt_tokens
    prompt_operations = 2 * (shape.layer_weights * prompt_tokens + shape.head_weights * cell.num_prompts)
    seconds = max(weight_bytes / ceilings.read_bytes_per_s, prompt_operations / rate)
    step_operations = 2 * (shape.layer_weights + shape.head_weights) * cell.num_prompts
    for made in range(1, cell.output_tokens):
        context = (cell.prompt_tokens + made) * cell.num_prompts
        read_s = (weight_bytes + context * kv_bytes) / ceilings.read_bytes_per_s
        seconds += max(read_s, step_operations / rate)
    return seconds


def limit_tokens_per_s(cell: Cell, shape: Shape, stored: Format, ceilings: Ceilings) -> float:
    """Return the speed that no engine can exceed with this format."""
    return cell.counted_tokens / shortest_s(cell, shape, stored, ceilings)
