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

All but `mix_in` and `o` are float32 in every format.
"""

from dataclasses import dataclass
from typing import Literal

Mixer = Literal["attention", "conv", "delta", "ssd", "none"]
"""
Attention, a gated short convolution (LFM2), the gated delta rule (Qwen3-Next), a state space model (Mamba2), or
nothing: the layer has an MLP only (Nemotron-H).
"""


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
