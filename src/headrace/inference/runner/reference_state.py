"""
State layers in plain numpy: the slots that keep the states of sequences, and the loop over tokens.

Letters in shapes: `T` tokens of the step, `C` channels of the convolution, `G` gates.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Protocol

import numpy as np

from headrace.core.errors import EngineFailed
from headrace.inference.models.mixers import StateShape
from headrace.inference.models.spec import ModelSpec
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


def state_mixer(spec: ModelSpec, layer: int) -> StateMixer:
    """Return the mixer of a state layer."""
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
