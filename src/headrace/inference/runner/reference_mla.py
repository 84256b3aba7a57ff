"""
The parts of latent attention that no other attention has, in plain numpy and float32, for the reference network.

Letters in shapes: `T` tokens, `H` heads.
"""

from collections.abc import Callable

import numpy as np

from headrace.inference.models.latent import MlaSpec
from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.step import Float32, Int32


def latent_heads(
    mla: MlaSpec,
    x: Float32,
    k_b: Float32,
    *,
    linear: Callable[[Float32, str], Float32],
    norm: Callable[[Float32, str], Float32],
    turn: Callable[[Float32], Float32],
) -> tuple[Float32, Float32, Float32]:
    """Return absorbed queries (T, H, D), keys (T, 1, D) and values (T, 1, kv_rank) of tokens with inputs `x`."""
    inputs = norm(linear(x, "q_a"), "q_a_norm") if mla.query_rank else x
    queries = linear(inputs, "q_b").reshape(len(x), -1, mla.query_dim)
    plain, rotated = np.split(queries, [mla.key_dim], axis=-1)
    latent, key = np.split(linear(x, "kv_a")[:, None], [mla.kv_rank], axis=-1)
    latent = norm(latent, "kv_a_norm")
    absorbed = np.concatenate([absorb_keys(mla, plain, k_b), turn(rotated)], axis=-1)
    return absorbed, np.concatenate([latent, turn(key)], axis=-1), latent


def absorb_keys(mla: MlaSpec, queries: Float32, k_b: Float32) -> Float32:
    """Return the queries (T, H, kv_rank) that meet latents, given those (T, H, key_dim) that would meet keys."""
    absorbed: Float32 = np.einsum("thk,hrk->thr", queries, k_b.reshape(-1, mla.kv_rank, mla.key_dim), optimize=True)
    return absorbed


def expand_values(mla: MlaSpec, attended: Float32, v_b: Float32) -> Float32:
    """Return the outputs (T, H * value_dim) of heads, given their weighted sums of latents (T, H * kv_rank)."""
    latents = attended.reshape(len(attended), -1, mla.kv_rank)
    outputs: Float32 = np.einsum("thr,hvr->thv", latents, v_b.reshape(-1, mla.value_dim, mla.kv_rank), optimize=True)
    return outputs.reshape(len(attended), -1)


def query_factors(spec: ModelSpec, positions: Int32) -> Float32:
    """Return the factors (T,) of the queries at positions (T,), where they grow."""
    periods = np.floor(positions / np.float32(spec.growth_period)).astype(np.float32)
    factors: Float32 = 1 + np.float32(spec.query_growth) * np.log1p(periods)
    return factors
