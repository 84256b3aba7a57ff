"""
Record the activations that each matrix reads on calibration text, with the reference network, layer by layer.

Only one layer is decoded at a time, so the memory needed is that of the largest layer in float32, not of the model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.core.errors import BrokenModel
from headrace.inference.models.decoding import decode
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import WeightSource
from headrace.inference.runner.reference import Layer, embedded, layer_input
from headrace.inference.runner.step import Float32, Int32, RunnerLimits, StateStep

SEARCH_TOKENS = 512
"""Tokens, spread over the samples, whose activations are kept in full to evaluate scales on."""
_BLOCK_TOKENS = 32
_TABLES = frozenset({"embed", "positions", "token_types", "embed_norm", "embed_norm_bias"})
"""The weights before the first layer."""
_INPUT_PARTS = ("layer_proj", "layer_proj_norm")
"""The weights that compute the inputs of layers beside the stream (Gemma 4)."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of one matrix: largest magnitude and mean square of each (K,), and those of some tokens (S, K)."""

    maxima: Float32
    mean_squares: Float32
    tokens: Float32


@dataclass(frozen=True, slots=True)
class TracedLayer:
    """The weights of a layer by part (`q`, `attn_norm`), in float32, and the inputs of its matrices."""

    index: int
    weights: dict[str, Float32]
    inputs: dict[str, Inputs]


def trace_layers(spec: ModelSpec, weights: WeightSource, samples: Sequence[Sequence[int]]) -> Iterator[TracedLayer]:
    """Run samples (token ids) through the network and yield its layers; raises `BrokenModel` at a non-finite number."""
    num_tokens = max(map(len, samples))
    shared = {source for index in range(spec.num_layers) if (source := spec.kv_source(index)) not in {index, -1}}
    blocks = [-(-len(ids) // _BLOCK_TOKENS) for ids in samples]
    starts = np.cumsum([0, *blocks[:-1]]) * _BLOCK_TOKENS if shared else np.zeros(len(samples), np.int64)
    limits = RunnerLimits(
        num_blocks=sum(blocks) if shared else max(blocks),  # later layers read what earlier ones keep of all samples
        block_tokens=_BLOCK_TOKENS,
        max_step_tokens=num_tokens,
        max_step_sequences=1,
        max_step_rows=1,
        max_context_tokens=num_tokens,
        num_state_slots=1,
    )
    tables = {name: decode(weights.load(name)) for name in weights.names() if name in _TABLES}
    states = [embedded(spec, tables, np.array(ids, np.int32), np.arange(len(ids), dtype=np.int32)) for ids in samples]
    del tables
    own_inputs = [_OwnInputs(spec, weights, np.array(ids, np.int32), x) for ids, x in zip(samples, states, strict=True)]
    sources: dict[int, Layer] = {}
    for index in range(spec.num_layers):
        prefix = f"layers.{index}."
        loaded = {name: decode(weights.load(name)) for name in weights.names() if name.startswith(prefix)}
        layer = _WatchedLayer(spec, index, loaded, limits, source=sources.get(spec.kv_source(index)))
        if index in shared:
            sources[index] = layer
        for number, state in enumerate(states):
            length = len(state)
            positions: Int32 = np.arange(length, dtype=np.int32)
            slots = (positions + starts[number]).astype(np.int32)
            count = min(-(-SEARCH_TOKENS // len(samples)), length)  # evenly spaced
            layer.picked = np.unique(np.linspace(0, length - 1, count).astype(np.int32))
            states[number] = layer.forward(
                state,
                positions,
                [(slots, length)],
                states=_new_sequence(length),
                own_input=own_inputs[number].of_layer(index),
            )
        inputs = {name: recorded.joined() for name, recorded in layer.recorded.items()}
        _require_finite(index, states, inputs)
        parts = {name.removeprefix(prefix): values for name, values in loaded.items()}
        yield TracedLayer(index, parts, inputs)


@dataclass(slots=True)
class _RecordedInputs:
    maxima: Float32
    squares: Float32
    num_tokens: int = 0
    tokens: list[Float32] = field(default_factory=list)

    def joined(self) -> Inputs:
        return Inputs(
            self.maxima,
            self.squares / np.float32(self.num_tokens),
            np.concatenate(self.tokens or [np.zeros((0, len(self.maxima)), np.float32)]),
        )


class _WatchedLayer(Layer):
    """A layer that records the inputs of its matrices."""

    def __init__(
        self,
        spec: ModelSpec,
        index: int,
        weights: dict[str, Float32],
        limits: RunnerLimits,
        source: Layer | None = None,
    ) -> None:
        super().__init__(spec, index, weights, limits, source=source)
        self.recorded: dict[str, _RecordedInputs] = {}
        self.picked: Int32 = np.zeros(0, np.int32)
        """Indices of the tokens of the sample that are kept."""

    def _linear(self, x: Float32, name: str) -> Float32:
        nothing = np.zeros(x.shape[1], np.float32)
        recorded = self.recorded.setdefault(name, _RecordedInputs(nothing, nothing.copy()))
        np.maximum(recorded.maxima, np.abs(x).max(axis=0), out=recorded.maxima)
        recorded.squares += np.einsum("tk,tk->k", x, x)
        recorded.num_tokens += len(x)
        if len(x) > self.picked.max(initial=-1):  # an expert sees only some of the tokens; its inputs are not smoothed
            recorded.tokens.append(x[self.picked])
        return super()._linear(x, name)


class _OwnInputs:
    """The inputs of layers beside the stream for one sample, computed by layer: all together exceed the states."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, token_ids: Int32, first: Float32) -> None:
        """Take the input `first` (T, hidden) of the first layer."""
        self._spec, self._first = spec, first
        self._weights: dict[str, Float32] = {}
        if spec.layer_input_size:
            self._weights = {name: decode(weights.load(name)) for name in _INPUT_PARTS}
            self._rows = weights.load_rows("layer_embed", token_ids)

    def of_layer(self, index: int) -> Float32 | None:
        """Return the input (T, size) of a layer; None: the network has none."""
        if not self._weights:
            return None
        return layer_input(self._spec, self._weights, decode(self._rows), self._first, index)


def _new_sequence(length: int) -> StateStep:
    first, new = np.zeros(1, np.int32), np.full(1, -1, np.int32)
    return StateStep(read=new, write=first, replayed=first, certain=np.array([length], np.int32))


def _require_finite(index: int, states: Sequence[Float32], inputs: dict[str, Inputs]) -> None:
    if all(np.isfinite(recorded.maxima).all() for recorded in inputs.values()) and all(
        np.isfinite(s).all() for s in states
    ):
        return
    raise BrokenModel(
        f"Layer {index} produces numbers that are not finite on the calibration text: "
        "the weights of this checkpoint are damaged, or do not match its config."
    )
