"""The state space model of Mamba2 in plain numpy, for the reference network; `SsdSpec` has its formulas."""

from collections.abc import Mapping

import numpy as np

from headrace.inference.models.mixers import SsdSpec
from headrace.inference.runner.reference_activations import silu, softplus
from headrace.inference.runner.step import Float32


class StateSpace:
    """The computations of a state space model beside its matrices and its convolution: a `StateMixer`."""

    def __init__(self, spec: SsdSpec, weights: Mapping[str, Float32]) -> None:
        self._spec = spec
        self._decay, self._dt_bias, self._skip = (
            weights[name].reshape(-1) for name in ("mix_decay", "mix_dt_bias", "mix_skip")
        )
        self._norm = weights["mix_norm"].reshape(spec.groups, -1) if spec.norm else None
        self._group = np.arange(spec.heads) * spec.groups // spec.heads

    def inputs(self, projected: Float32) -> Float32:
        return projected[:, self._spec.num_values :]

    def scan(self, state: Float32, convolved: Float32, gates: Float32) -> Float32:
        spec = self._spec
        length = spec.groups * spec.state_size
        x, b, c = np.split(silu(convolved), (spec.num_values, spec.num_values + length))
        heads = x.reshape(spec.heads, spec.head_dim)
        b, c = (vectors.reshape(spec.groups, spec.state_size)[self._group] for vectors in (b, c))
        dt = softplus(gates + self._dt_bias)
        state *= np.exp(self._decay * dt)[:, None, None]
        state += b[:, :, None] * (dt[:, None] * heads)[:, None, :]
        output: Float32 = np.einsum("hnp,hn->hp", state, c) + self._skip[:, None] * heads
        return output.reshape(-1)

    def outputs(self, projected: Float32, scanned: Float32) -> Float32:
        gates = silu(projected[:, : self._spec.num_values])
        if self._norm is None:
            return scanned * gates
        if self._spec.norm == "before_gate":
            return self._normed(scanned) * gates
        return self._normed(scanned * gates)

    def _normed(self, outputs: Float32) -> Float32:
        """Norm outputs (T, values) over each group."""
        groups = outputs.reshape(len(outputs), self._spec.groups, -1)
        scale = np.sqrt(np.mean(groups * groups, axis=-1, keepdims=True) + np.float32(self._spec.norm_eps))
        normed: Float32 = (groups / scale * self._norm).reshape(outputs.shape)
        return normed
