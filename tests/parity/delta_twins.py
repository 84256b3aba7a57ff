"""
The rules of llama.cpp's converter for layers with the gated delta rule.

Source: `conversion/qwen.py` of llama.cpp, `Qwen3NextModel` and `_LinearAttentionVReorderBase`; `kimi_linear.py`.
"""

import re
from collections.abc import Iterator

import numpy as np

from headrace.inference.models.mixers import DeltaSpec
from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.step import Float32

_TILED = {"in_proj_z": 0, "in_proj_b": 0, "in_proj_a": 0, "A_log": 0, "dt_bias": 0, "out_proj": 1}
"""The axis of the value heads in the tensors of a folder."""
_CANONICAL = {"mix_v": 0, "mix_z": 0, "mix_beta": 0, "mix_dt": 0, "mix_decay": 1, "mix_dt_bias": 1, "o": 1}


def convert(name: str, values: Float32, spec: ModelSpec, architecture: str) -> Iterator[tuple[str, Float32]]:
    """Yield the tensors that a converter makes of one, by the names from which `gguf` derives those in the file."""
    assert spec.delta is not None
    delta, part = spec.delta, re.sub(r"\.weight$", "", name).rpartition(".")[2]
    if part == "in_proj_qkvz":
        grouped = values.reshape(delta.key_heads, -1, values.shape[-1])
        sizes = (delta.key_dim, delta.key_dim, delta.num_values // delta.key_heads)
        parts = [piece.reshape(-1, values.shape[-1]) for piece in np.split(grouped, np.cumsum(sizes), axis=1)]
        prefix = name.removesuffix("qkvz.weight")
        yield f"{prefix}qkv.weight", np.concatenate(parts[:3])
        yield f"{prefix}z.weight", parts[3]
        return
    if architecture != "qwen3next":
        values = _tile_values(values, delta) if part in {"in_proj_qkv", "conv1d"} else values
        values = _tile(values, delta, _TILED[part]) if part in _TILED else values
    if part == "A_log":
        values = -np.exp(values)
    elif part == "conv1d":
        values = values.squeeze()
    elif part.endswith("norm") and not name.endswith("linear_attn.norm.weight"):
        values = values + 1
    yield name.replace("dt_bias", "dt_proj.bias"), values


def by_channel(name: str, values: Float32) -> tuple[str, Float32]:
    """Return a tensor of Kimi-Linear as a converter writes it; that of a dense MLP by its name in released folders."""
    name = re.sub(r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj", name.replace("dt_bias", "dt_proj.bias"))
    if name.endswith("conv1d.weight"):
        values = values.reshape(1, len(values), 1, -1)
    return name, -np.exp(values) if name.endswith("A_log") else values


def tiled(name: str, values: Float32, delta: DeltaSpec) -> Float32:
    """Return a canonical weight with the value heads in the order of the files of Qwen 3.5."""
    part = name.rpartition(".")[2]
    if part == "mix_conv":
        return _tile_values(values, delta)
    return _tile(values, delta, _CANONICAL[part]) if part in _CANONICAL else values


def _tile_values(values: Float32, delta: DeltaSpec) -> Float32:
    keys, others = np.split(values, [2 * delta.num_keys])
    return np.concatenate([keys, _tile(others, delta, 0)])


def _tile(values: Float32, delta: DeltaSpec, axis: int) -> Float32:
    """Put the value heads, which lie by key head, into the order in which those of a key head are far apart."""
    heads = np.arange(values.shape[axis]).reshape(delta.key_heads, delta.value_heads // delta.key_heads, -1)
    return np.take(values, heads.swapaxes(0, 1).reshape(-1), axis=axis)
