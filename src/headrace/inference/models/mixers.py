"""
Mixers: the part of a layer that lets tokens see earlier ones. Those other than attention keep a state of fixed size.

A state layer projects each token (`mix_in`), runs a causal convolution over the last few tokens, one filter a channel,
and perhaps a scan, whose state sums up all tokens so far. Its state after a token is the last `taps - 1` inputs of the
convolution and the state of the scan, all in float32.

Canonical weights, beside the norms and the MLP that any layer has (`spec.py`):

    layers.{i}.mix_in           (all outputs, hidden)   see the spec of each kind for their order
    layers.{i}.mix_small        (gates, hidden)         gates of the scan, computed in float32
    layers.{i}.mix_conv         (channels, taps)        the last tap is that of the newest token
    layers.{i}.mix_conv_bias    (channels,)
    layers.{i}.mix_decay        -exp(A_log)
    layers.{i}.mix_dt_bias
    layers.{i}.mix_skip
    layers.{i}.mix_norm         the norm of the scan's output
    layers.{i}.o                (hidden, outputs of the scan or the convolution)
    layers.{i}.mix_out          in place of `o`, where that is the output of attention beside the state

The gated delta rule has parts of `mix_in` and `mix_small` instead, which checkpoints store apart or in other orders:

    layers.{i}.mix_q | mix_k    (key_heads * key_dim, hidden)
    layers.{i}.mix_v | mix_z    (value_heads * value_dim, hidden)
    layers.{i}.mix_beta | mix_dt                        (value_heads, hidden)

Where it decays by channel, two projections after each other take the place of `mix_z` and of `mix_dt`:

    layers.{i}.mix_z_a                                  (key_dim, hidden)
    layers.{i}.mix_z_b                                  (value_heads * value_dim, key_dim)
    layers.{i}.mix_dt_a                                 (key_dim, hidden)
    layers.{i}.mix_dt_b                                 (value_heads * key_dim, key_dim)

A state space model has vectors of the heads `mix_decay`, `mix_dt_bias` and `mix_skip`, and a `mix_norm` of all outputs.
All matrices but `mix_in` or its parts, to which `mix_z_a` and `mix_dt_a` belong, and `o` are float32 in every format.
"""

from dataclasses import dataclass
from typing import Final, Literal

Mixer = Literal["attention", "conv", "delta", "ssd", "none"]
"""
Attention, a gated short convolution (LFM2), the gated delta rule (Qwen3-Next), a state space model (Mamba2), or
nothing: the layer has an MLP only (Nemotron-H).
"""

MAX_TAPS: Final = 64
"""The longest convolution; released networks have 3 to 7 taps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """The sizes of the state of one layer, which all kinds of state layers share."""

    channels: int
    """Channels of the convolution."""
    taps: int
    """Tokens that the convolution sees, the newest one included."""
    num_gates: int = 0
    """Outputs of `mix_small`, which a draft token keeps for its replay beside the inputs of the convolution."""
    scan: tuple[int, ...] = ()
    """Shape of the scan's state; empty: there is no scan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvSpec:
    """
    A gated short convolution (LFM2): `o(C * conv(B * x))`, without an activation.

    The rows of `mix_in` are B, C and x, each of the hidden size.
    """

    taps: int

    def state_shape(self, hidden_size: int) -> StateShape:
        return StateShape(channels=hidden_size, taps=self.taps)

    def num_parameters(self, hidden_size: int) -> int:
        """Return the number of weights in the matrices of a layer's mixer."""
        return 4 * hidden_size * hidden_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec:
    """
    The gated delta rule (Qwen3-Next): each value head keeps a matrix that maps keys to values.

    A token's q, k and v pass through the convolution and SiLU, and q and k are scaled to the length 1 in each head, q
    also by `key_dim ** -0.5`. With `decay = exp(mix_decay * softplus(dt + mix_dt_bias))`, which is a number a head:

        S = decay * S
        S = S + outer(k, beta_scale * sigmoid(beta) * (v - S.T @ k))
        output = rms_norm(S.T @ q) * mix_norm * silu(z)

    Channels of the convolution are q, k and v. Source: Yang et al. 2024, "Gated Delta Networks".

    Kimi Delta Attention decays by channel: `decay` is a vector of the keys' numbers, by which the rows of S are
    multiplied, and `sigmoid(z)` takes the place of `silu(z)`. Source: Kimi Team 2025, "Kimi Linear".
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    norm_eps: float
    beta_scale: float = 1.0
    is_tiled: bool = False
    """
    Value head h reads key head `h % key_heads`, as llama.cpp orders the heads of Qwen 3.5; False: value heads that read
    the same key head follow each other.
    """
    by_channel: bool = False
    """Each number of a key has its own decay, and the projections of decays and of gates have the rank `key_dim`."""

    @property
    def num_keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def num_values(self) -> int:
        return self.value_heads * self.value_dim

    def state_shape(self, _hidden_size: int) -> StateShape:
        return StateShape(
            channels=2 * self.num_keys + self.num_values,
            taps=self.taps,
            num_gates=self.value_heads * (1 + (self.key_dim if self.by_channel else 1)),
            scan=(self.value_heads, self.key_dim, self.value_dim),
        )

    def num_parameters(self, hidden_size: int) -> int:
        """Return the number of weights in the matrices of a layer's mixer."""
        values_and_output = hidden_size * (2 * self.num_keys + 2 * self.num_values + self.value_heads)
        if not self.by_channel:
            return values_and_output + hidden_size * (self.num_values + self.value_heads)
        outputs = self.num_values + self.value_heads * self.key_dim
        return values_and_output + self.key_dim * (2 * hidden_size + outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SsdSpec:
    """
    A state space model with one decay a head (Mamba2).

    The rows of `mix_in` are z, x, B and C; x, B and C pass through the convolution and SiLU. With `dt = softplus(gate +
    mix_dt_bias)` of the gate in `mix_small`, each head keeps a matrix:

        S = exp(mix_decay * dt) * S + outer(B, dt * x)
        y = S.T @ C + mix_skip * x
        output = rms_norm(y * silu(z)) * mix_norm

    Heads of a group have B and C in common, and the norm is over the outputs of a group. Source: Dao & Gu 2024,
    "Transformers are SSMs".
    """

    heads: int
    head_dim: int
    state_size: int
    """Length of B and C."""
    groups: int
    taps: int
    norm_eps: float
    conv_bias: bool = True
    norm: Literal["gated", "before_gate"] | None = "gated"
    """The norm follows the gate as above, or precedes it: `rms_norm(y) * mix_norm * silu(z)`; or there is none."""

    @property
    def num_values(self) -> int:
        return self.heads * self.head_dim

    @property
    def num_channels(self) -> int:
        return self.num_values + 2 * self.groups * self.state_size

    def state_shape(self, _hidden_size: int) -> StateShape:
        return StateShape(
            channels=self.num_channels,
            taps=self.taps,
            num_gates=self.heads,
            scan=(self.heads, self.state_size, self.head_dim),
        )

    def num_parameters(self, hidden_size: int) -> int:
        """Return the number of weights in the matrices of a layer's mixer."""
        return hidden_size * (2 * self.num_values + self.num_channels + self.heads)
