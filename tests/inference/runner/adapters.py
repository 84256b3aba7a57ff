"""Random adapters for tests of runners."""

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.inference.models.adapter import Adapter, LowRank, is_adaptable
from headrace.inference.models.decoding import decode
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import WeightSource
from headrace.inference.runner.step import Float32
from tests.inference.runner.weights import ArrayWeights

ALL = ("q", "k", "v", "attn_gate", "o", "gate", "up", "down")


def random_adapter(
    spec: ModelSpec, *, seed: int = 0, ranks: Sequence[int] = (8,), parts: Sequence[str] = ALL, scale: float = 0.5
) -> Adapter:
    """Return an adapter whose matrices have these ranks in turn, of about `scale` times the weights' size."""
    rng = np.random.default_rng(seed)
    matrices: dict[str, LowRank] = {}
    for name, (num_rows, num_columns) in expected_shapes(spec).items():
        if is_adaptable(name) and name.rpartition(".")[2] in parts:
            rank = ranks[len(matrices) % len(ranks)]
            shrink = rng.standard_normal((rank, num_columns)) * num_columns**-0.5
            expand = rng.standard_normal((num_rows, rank)) * scale * rank**-0.5
            matrices[name] = LowRank(shrink.astype(np.float32), expand.astype(np.float32))
    return Adapter(identity=f"random {seed} {ranks} {parts}", matrices=matrices)


def merged(weights: WeightSource, adapter: Adapter) -> ArrayWeights:
    """Return the weights with the adapter added."""
    return ArrayWeights({name: _merged(name, weights, adapter.matrices) for name in weights.names()})


def _merged(name: str, weights: WeightSource, matrices: Mapping[str, LowRank]) -> Float32:
    values = decode(weights.load(name))
    return values + matrices[name].expand @ matrices[name].shrink if name in matrices else values
