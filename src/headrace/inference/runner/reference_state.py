"""
State layers in plain numpy: the slots that keep the states of sequences, and the loop over tokens.

Letters in shapes: `T` tokens of the step, `C` channels of the convolution, `G` gates.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from headrace.core.errors import EngineFailed
from headrace.inference.models.mixers import DeltaSpec, SsdSpec, StateShape
from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.reference_activations import sigmoid, silu, softplus
from headrace.inference.runner.reference_ssd import StateSpace
from headrace.inference.runner.step import Float32, Int32, RunnerLimits, StateStep


class StateMixer(Protocol):
    """The computations of one kind of state layer beside its matrices and its convolution."""

    def inputs(self, projected: Float32) -> Float32:
        """Return the inputs of the convolution (T, C) from the outputs of `mix_in`."""
        ...

    def scan(self, state: Float32, convolved: Float32, gates: Float32) -> Float32:
        """Update the state with one token in place, and return the output of the token; (C,) and (G,)."""
        ...

    def outputs(self, projected: Float32, scanned: Float32) -> Float32:
        """Return the inputs of `o` from the outputs of `mix_in` and those of `scan`, of all tokens."""
        ...


class ShortConv:
    """The mixer of LFM2: the convolution is all that a token sees of others."""

    def inputs(self, projected: Float32) -> Float32:
        before, _, x = np.split(projected, 3, axis=1)
        gated: Float32 = before * x
        return gated

    def scan(self, state: Float32, convolved: Float32, gates: Float32) -> Float32:  # noqa: ARG002
        return convolved

    def outputs(self, projected: Float32, scanned: Float32) -> Float32:
        gated: Float32 = np.split(projected, 3, axis=1)[1] * scanned
        return gated


class DeltaRule:
    """The gated delta rule; `DeltaSpec` has its formulas."""

    def __init__(self, spec: DeltaSpec, weights: Mapping[str, Float32]) -> None:
        self._spec = spec
        self._decay, self._dt_bias = weights["mix_decay"].reshape(-1), weights["mix_dt_bias"].reshape(-1)
        self._norm = weights["mix_norm"].reshape(-1)
        heads = np.arange(spec.value_heads)
        self._gate = sigmoid if spec.by_channel else silu
        self._key_head = heads % spec.key_heads if spec.is_tiled else heads * spec.key_heads // spec.value_heads

    def inputs(self, projected: Float32) -> Float32:
        return projected[:, : -self._spec.num_values]

    def scan(self, state: Float32, convolved: Float32, gates: Float32) -> Float32:
        spec = self._spec
        q, k, v = np.split(silu(convolved), (spec.num_keys, 2 * spec.num_keys))
        q, k = (_unit_heads(heads.reshape(spec.key_heads, spec.key_dim))[self._key_head] for heads in (q, k))
        beta, dt = np.split(gates, (spec.value_heads,))
        factor = sigmoid(beta) * np.float32(spec.beta_scale)
        # One number a head, or one for each number of a key.
        dt = softplus(dt + self._dt_bias).reshape(spec.value_heads, -1)
        state *= np.exp(self._decay[:, None] * dt)[:, :, None]
        change = factor[:, None] * (v.reshape(spec.value_heads, -1) - np.einsum("hkv,hk->hv", state, k))
        state += k[:, :, None] * change[:, None, :]
        output: Float32 = np.einsum("hkv,hk->hv", state, q * np.float32(spec.key_dim**-0.5))
        return output.reshape(-1)

    def outputs(self, projected: Float32, scanned: Float32) -> Float32:
        heads = scanned.reshape(len(scanned), self._spec.value_heads, self._spec.value_dim)
        scale = np.sqrt(np.mean(heads * heads, axis=-1, keepdims=True) + np.float32(self._spec.norm_eps))
        normed: Float32 = (heads / scale * self._norm).reshape(scanned.shape)
        return normed * self._gate(projected[:, -self._spec.num_values :])


_UNIT_EPS: Final = np.float32(1e-6)


def _unit_heads(heads: Float32) -> Float32:
    """Scale heads (heads, size) to the length 1. The floor is that of transformers, whatever the eps of norms."""
    scaled: Float32 = heads / np.sqrt(np.sum(heads * heads, axis=1, keepdims=True) + _UNIT_EPS)
    return scaled


def join_parts(spec: ModelSpec, layer: int, weights: Mapping[str, Float32]) -> dict[str, Float32]:
    """Return the weights of a layer with `mix_in` and `mix_small` joined from their parts."""
    joined = dict(weights)
    if spec.mixer(layer) == "delta":
        assert spec.delta is not None
        for part in ("z", "dt") if spec.delta.by_channel else ():
            joined[f"mix_{part}"] = weights[f"mix_{part}_b"] @ weights[f"mix_{part}_a"]
        joined["mix_in"] = np.concatenate([joined[f"mix_{part}"] for part in ("q", "k", "v", "z")])
        joined["mix_small"] = np.concatenate([joined["mix_beta"], joined["mix_dt"]])
    return joined


def state_mixer(spec: ModelSpec, layer: int, weights: Mapping[str, Float32]) -> StateMixer:
    """Return the mixer of a state layer."""
    mixer = spec.state_mixer(layer)
    if isinstance(mixer, DeltaSpec):
        return DeltaRule(mixer, weights)
    if isinstance(mixer, SsdSpec):
        return StateSpace(mixer, weights)
    assert spec.mixer(layer) == "conv"
    return ShortConv()


class StateSlots:
    """The state slots of one layer, and the loop over the tokens of sequences."""

    def __init__(
        self, shape: StateShape, mixer: StateMixer, weights: Mapping[str, Float32], limits: RunnerLimits
    ) -> None:
        self._mixer, self._taps = mixer, shape.taps
        self._filter = weights["mix_conv"].reshape(shape.channels, shape.taps)
        self._bias = weights["mix_conv_bias"].reshape(-1) if "mix_conv_bias" in weights else np.float32(0)
        # The last slot stays zero: new sequences read it as slot -1.
        slots, drafts = limits.num_state_slots + 1, limits.max_draft_tokens
        # Inputs of the convolution: of the last known tokens, then of the draft tokens.
        self._rows = np.zeros((slots, shape.taps - 1 + drafts, shape.channels), np.float32)
        self._gates = np.zeros((slots, drafts, shape.num_gates), np.float32)
        self._scans = np.zeros((slots, *shape.scan), np.float32)
        self._num_drafts = np.zeros(slots, np.int32)

    @classmethod
    def of_layer(
        cls, spec: ModelSpec, index: int, weights: Mapping[str, Float32], limits: RunnerLimits
    ) -> "StateSlots":
        shape = spec.state_shape(index)
        assert shape is not None
        return cls(shape, state_mixer(spec, index, weights), weights, limits)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self._gates.nbytes + self._scans.nbytes

    def run(self, projected: Float32, gates: Float32, starts: Int32, states: StateStep) -> Float32:
        """Return the inputs of `o` for the outputs of `mix_in` and of `mix_small` (T, G); `starts` are of sequences."""
        inputs = self._mixer.inputs(projected)
        pieces = [
            self._run_sequence(sequence, inputs[start:stop], gates[start:stop], states)
            for sequence, (start, stop) in enumerate(pairwise(starts))
        ]
        return self._mixer.outputs(projected, np.concatenate(pieces))

    def _run_sequence(self, sequence: int, inputs: Float32, gates: Float32, states: StateStep) -> Float32:
        read, write = int(states.read[sequence]), int(states.write[sequence])
        replayed = int(states.replayed[sequence])
        known = replayed + int(states.certain[sequence])
        rows, all_gates, state = self._start(read, replayed)
        rows, all_gates = np.concatenate([rows, inputs]), np.concatenate([all_gates, gates])
        kept = {int(tokens): int(slot) for index, tokens, slot in states.snapshots if index == sequence}
        outputs = []
        for token in range(len(all_gates)):
            outputs.append(self._mixer.scan(state, self._convolve(rows[token : token + self._taps]), all_gates[token]))
            if token + 1 in kept:
                self._store(kept[token + 1], rows[token + 1 :], state)
            if token + 1 == known:
                self._store(write, rows[known:], state)
        self._keep_drafts(write, rows[known + self._taps - 1 :], all_gates[known:])
        return np.stack(outputs[replayed:])

    def _start(self, slot: int, replayed: int) -> tuple[Float32, Float32, Float32]:
        """Return copies of what a sequence continues: convolution inputs, gates of tokens to replay, and the scan."""
        if replayed > self._num_drafts[slot]:
            raise EngineFailed(
                f"The step is invalid: it replays {replayed} draft tokens of state slot {slot}, "
                f"which holds {self._num_drafts[slot]}."
            )
        rows = self._rows[slot, : self._taps - 1 + replayed]
        return rows.copy(), self._gates[slot, :replayed].copy(), self._scans[slot].copy()

    def _convolve(self, window: Float32) -> Float32:
        """Return the convolution of the last tokens (taps, C) of one token, summed from the oldest on."""
        total: Float32 = self._filter[:, 0] * window[0]
        for tap in range(1, self._taps):
            total = total + self._filter[:, tap] * window[tap]
        return total + self._bias

    def _store(self, slot: int, rows: Float32, state: Float32) -> None:
        self._rows[slot, : self._taps - 1] = rows[: self._taps - 1]
        self._scans[slot] = state
        self._num_drafts[slot] = 0

    def _keep_drafts(self, slot: int, rows: Float32, gates: Float32) -> None:
        self._rows[slot, self._taps - 1 :][: len(rows)] = rows
        self._gates[slot, : len(gates)] = gates
        self._num_drafts[slot] = len(gates)
