"""Random weights as a `WeightSource`."""

from collections.abc import Iterable, Mapping

import numpy as np

from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import Encoding, RawTensor
from headrace.inference.runner.step import Float32

W8_GROUP = 64


class ArrayWeights:
    """A `WeightSource` over float32 arrays."""

    def __init__(self, arrays: Mapping[str, Float32]) -> None:
        self.arrays = {name: np.atleast_2d(np.asarray(array, np.float32)) for name, array in arrays.items()}

    @property
    def fingerprint(self) -> str:
        return str(hash(tuple(float(array.sum()) for array in self.arrays.values())))

    @property
    def dominant_encoding(self) -> Encoding:
        return Encoding.F32

    def stored_bits(self, name: str) -> int:
        return 32

    def stored_format(self, name: str) -> str:
        return "F32"

    def encoding(self, name: str) -> Encoding:
        return Encoding.F32

    def names(self) -> Iterable[str]:
        return self.arrays

    def load(self, name: str) -> RawTensor:
        array = np.ascontiguousarray(self.arrays[name])
        return RawTensor(Encoding.F32, *array.shape, array.view(np.uint8))

    def load_rows(self, name: str, rows) -> RawTensor:
        array = np.ascontiguousarray(self.arrays[name][rows])
        return RawTensor(Encoding.F32, *array.shape, array.view(np.uint8))


def random_weights(spec: ModelSpec, seed: int = 0) -> ArrayWeights:
    """Return every weight that a spec requires, scaled to keep activations near 1."""
    rng = np.random.default_rng(seed)
    return ArrayWeights({name: _random(rng, name, shape) for name, shape in weight_shapes(spec).items()})


def round_to_w8(values: Float32) -> Float32:
    """Return what W8 keeps of a matrix: bytes with a half for every 64 columns, relative to a scale of the row."""
    num_rows, num_columns = values.shape
    groups = np.pad(values, ((0, 0), (0, -num_columns % W8_GROUP))).reshape(num_rows, -1, W8_GROUP)
    steps = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    row_scales = np.ldexp(np.float32(1), np.frexp(steps.max(axis=1, keepdims=True))[1])
    steps = (steps / row_scales).astype(np.float16).astype(np.float32) * row_scales
    inverse = np.divide(1, steps, out=np.zeros_like(steps), where=steps > 0)
    rounded: Float32 = np.clip(np.rint(groups * inverse), -127, 127) * steps
    return rounded.reshape(num_rows, -1)[:, :num_columns]


def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights; vectors are flat."""
    return {
        name: shape[1:] if shape[0] == 1 and not name.endswith("router") else shape
        for name, shape in expected_shapes(spec).items()
    }


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Float32:
    values = rng.standard_normal(shape).astype(np.float32)
    if name.endswith(("norm", "scale", "scales")):
        return 1 + 0.1 * values
    if name.endswith("mix_decay"):
        return -np.abs(values)
    if "xielu" in name:
        return np.abs(values)
    if name.endswith("bias"):
        return 0.1 * values
    return values if name == "embed" else values * shape[-1] ** -0.5
