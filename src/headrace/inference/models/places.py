"""
The places of canonical weights in a checkpoint.

A stored tensor may hold several weights (fused q, k and v), and store the rows of q and k in another rotary order. Both
concern whole rows, so every encoding that is stored by rows keeps its bits: a `Place` selects rows and decodes nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.inference.models.decoding import decode
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families.family import (
    EXPERT_INDEX,
    GGUF_FUSED_EXPERTS,
    GGUF_FUSED_KV_B,
    GGUF_SEPARATE_EXPERTS,
    GGUF_TENSORS,
    ONES,
    Family,
)
from headrace.inference.models.latent import MlaSpec
from headrace.inference.models.mixers import Mixer
from headrace.inference.models.shapes import Shape, expected_shapes
from headrace.inference.models.spec import ModelSpec, RopeSpec, split_name
from headrace.inference.models.weights import Encoding, RawTensor, as_float32

Rows = slice | npt.NDArray[np.intp]
Float32 = npt.NDArray[np.float32]

_ROTARY_PARTS = frozenset({"q", "k", "q_bias", "k_bias", "q_norm", "k_norm"})
_QKV_PARTS = frozenset({"q", "k", "v", "q_bias", "k_bias", "v_bias"})


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a canonical weight: a stored tensor, or some of its rows."""

    stored: str
    shape: Shape
    """The shape of the stored tensor."""
    rows: Rows | None = None
    """The rows of a matrix, or the numbers of a vector, in canonical order; None means all of them as they are."""
    factor: float = 1.0
    """Factor of a norm's weights."""
    row_factors: tuple[tuple[int, float], ...] = ()
    """Numbers of rows of a matrix, and the factor of each."""
    transposed: bool = False
    """The tensor has the inputs as rows; `shape` and `rows` are those after it is transposed."""
    num_stacked: int = 1
    """Matrices in the tensor, each of which is transposed on its own."""
    num_turned: int = 0
    """The weight is so many matrices of `rows`, each with its rows and columns exchanged; 0: it is the rows."""

    @property
    def is_ones(self) -> bool:
        """Return True if no tensor is stored, and the weights are ones."""
        return self.stored.rpartition(".")[2] == ONES

    @property
    def is_matrix(self) -> bool:
        return self.shape[0] > 1

    def cut(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the rows of the weight, given those of a stored matrix in any encoding."""
        return data if self.rows is None else data[self.rows]

    def turn(self, rows: RawTensor) -> RawTensor:
        """Return the weight, given its rows; matrices are turned in float32, since blocks lie along rows."""
        if not self.num_turned:
            return rows
        matrices = decode(rows).reshape(self.num_turned, -1, rows.num_columns)
        turned = np.ascontiguousarray(matrices.swapaxes(1, 2)).reshape(-1, matrices.shape[1])
        return RawTensor(Encoding.F32, *turned.shape, turned.view(np.uint8))

    @property
    def is_converted(self) -> bool:
        """Return True if the weight is a matrix in float32, whatever its tensor is stored in."""
        return self.num_turned > 0 or bool(self.row_factors)

    def scale(self, rows: RawTensor) -> RawTensor:
        """Return a matrix times the factors of its rows."""
        if not self.row_factors:
            return rows
        counts, factors = zip(*self.row_factors, strict=True)
        values = decode(rows) * np.repeat(np.array(factors, np.float32), counts)[:, None]
        return RawTensor(Encoding.F32, rows.num_rows, rows.num_columns, np.ascontiguousarray(values).view(np.uint8))

    def select(self, tensor: RawTensor) -> RawTensor:
        if self.is_matrix and self.row_factors:
            rows = self.cut(tensor.data)
            return self.scale(RawTensor(tensor.encoding, len(rows), tensor.num_columns, rows))
        if self.factor != 1.0:
            values = as_float32(tensor.data, tensor.encoding) * np.float32(self.factor)
            tensor = RawTensor(Encoding.F32, tensor.num_rows, tensor.num_columns, values.view(np.uint8).reshape(1, -1))
        if self.rows is None:
            return tensor
        if not self.is_matrix:
            numbers = tensor.data.reshape(self.shape[1], -1)[self.rows]
            return RawTensor(tensor.encoding, 1, len(numbers), numbers.reshape(1, -1))
        rows = self.cut(tensor.data)
        return self.turn(RawTensor(tensor.encoding, len(rows), tensor.num_columns, rows))


def merge(parts: Iterable[tuple[Place, Float32]]) -> Float32:
    """Return a stored tensor, given all weights (num_rows, num_columns) that it holds: the inverse of `select`."""
    parts = list(parts)
    stored = np.zeros(parts[0][0].shape, np.float32)
    for place, values in parts:
        rows = slice(None) if place.rows is None else place.rows
        target = stored if place.is_matrix else stored[0]
        target[rows] = (values if place.is_matrix else values.reshape(-1)) / np.float32(place.factor)
    return stored


def folder_places(family: Family, spec: ModelSpec) -> dict[str, Place]:
    groups = spec.num_kv_heads if family.qkv_by_kv_head else 1
    places = _places(spec, family.tensors, interleaved=family.interleaved_rope, qkv_groups=groups)
    if family.transposed:
        is_turned = {name: bool(split_name(name)[0]) and place.is_matrix for name, place in places.items()}
        places = {name: replace(place, transposed=is_turned[name]) for name, place in places.items()}
    places |= {name: replace(places[name], row_factors=factors) for name, factors in _row_factors(spec, places).items()}
    if family.alternating_experts and spec.moe is not None:
        places |= {name: _alternating(spec.moe, name, places[name]) for name in places if ".experts." in name}
    if family.position_offset and spec.learned_positions:
        place, offset = places["positions"], family.position_offset
        num_rows, num_columns = place.shape
        rows = slice(offset, num_rows + offset)
        places["positions"] = replace(place, shape=(num_rows + offset, num_columns), rows=rows)
    return places


def _row_factors(spec: ModelSpec, names: Iterable[str]) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return the factors of the rows of matrices that have some."""
    factors = dict(spec.weight_factors)
    shapes = expected_shapes(spec) if factors else {}
    found: dict[str, tuple[tuple[int, float], ...]] = {}
    for name in names if factors else ():
        part = split_name(name)[1]
        if part in factors:
            found[name] = ((shapes[name][0], factors[part]),)
        elif part == "mix_in" and spec.ssd is not None:
            values, length = spec.ssd.num_values, spec.ssd.groups * spec.ssd.state_size
            rows = {"z": values, "x": values, "b": length, "c": length}
            found[name] = tuple((count, factors[f"mix_in.{key}"]) for key, count in rows.items())
    return found


def _alternating(moe: MoeSpec, name: str, place: Place) -> Place:
    _, part, expert = split_name(name)
    count = moe.num_experts if place.is_matrix else 1
    place = replace(place, transposed=place.is_matrix, num_stacked=count)
    if part.startswith("expert_down"):
        return place
    first, stop = 2 * moe.expert_size * expert, 2 * moe.expert_size * (expert + 1)
    return replace(place, rows=slice(first + part.startswith("expert_up"), stop, 2))


def gguf_places(family: Family, spec: ModelSpec, stored: Collection[str]) -> dict[str, Place]:
    """Return the places in a GGUF file with the tensors `stored`; files from before April 2024 do not stack experts."""
    tensors = family.gguf_tensors
    if gguf_name("layers.0.experts.0.gate", GGUF_SEPARATE_EXPERTS) in stored:
        tensors = {**tensors, **GGUF_SEPARATE_EXPERTS}
    for names in (GGUF_FUSED_EXPERTS, GGUF_FUSED_KV_B):
        if any(name.endswith(next(iter(names.values()))) for name in stored):
            tensors = {**tensors, **names}
    return _places(spec, tensors, interleaved=family.interleaved_gguf_rope, qkv_groups=1)


def stored_name(name: str, tensors: Mapping[str, str]) -> str:
    layer, part, expert = split_name(name)
    if part in tensors or not part.endswith("_bias"):
        stored = tensors[part]
    else:  # the name of a bias follows from its weight's
        stored = f"{tensors[part.removesuffix('_bias')].removesuffix('.weight')}.bias"
    stored = stored.replace(EXPERT_INDEX, str(expert))
    return f"{tensors['layers']}{layer.removeprefix('layers')}.{stored}" if layer else stored


def gguf_name(name: str, tensors: Mapping[str, str] = GGUF_TENSORS) -> str:
    return stored_name(name, tensors)


def tensors_of_mixer(tensors: Mapping[str, str], mixer: Mixer) -> Mapping[str, str]:
    """Return the names in layers with a mixer: those that begin with its name win, such as `delta.o`."""
    own = f"{mixer}."
    return {**tensors, **{key.removeprefix(own): name for key, name in tensors.items() if key.startswith(own)}}


def _places(spec: ModelSpec, tensors: Mapping[str, str], *, interleaved: bool, qkv_groups: int) -> dict[str, Place]:
    shapes = expected_shapes(spec)
    by_mixer = {mixer: tensors_of_mixer(tensors, mixer) for mixer in {"attention", *spec.mixers}}

    def name_of(name: str) -> str:
        layer, _, _ = split_name(name)
        mixer = spec.mixer(int(layer.removeprefix("layers."))) if layer else "attention"
        return stored_name(name, by_mixer[mixer])

    shared: dict[str, list[str]] = {}
    for name in shapes:
        shared.setdefault(name_of(name), []).append(name)
    places = {}
    for stored, names in shared.items():
        groups = _groups_in(spec, names, qkv_groups)
        shape, slices = _fuse([shapes[name] for name in names], groups)
        for name, rows in zip(names, slices, strict=True):
            rows = _rotary_rows(rows, spec, name, shapes[name], interleaved)  # noqa: PLW2901
            places[name] = Place(stored, shape, rows, _factor(spec, name))
    if spec.mla is not None:
        for layer in filter(spec.attends, range(spec.num_layers)):
            places |= _kv_b_places(spec, spec.mla, places, f"layers.{layer}.")
    return {name: places[name] for name in shapes}


def _factor(spec: ModelSpec, name: str) -> float:
    """Return the factor of the weights of a norm, which takes the place of one that runners would have to apply."""
    if name in {"final_norm", "final_norm_bias"}:
        return spec.logit_scale
    if name == "layer_proj_norm":  # the sum of both parts of a layer's input is divided by the root of 2
        return 2**-0.5
    return float(spec.hidden_size**-0.5) if name.endswith(".router_norm") else 1.0


def _groups_in(spec: ModelSpec, names: list[str], qkv_groups: int) -> int:
    """Return how many times the parts of a tensor follow each other, for each head or each KV head."""
    parts = {name.rpartition(".")[2] for name in names}
    if {"q", "attn_gate"}.issubset(parts):
        return spec.num_heads
    if spec.delta is not None and ({"mix_q", "mix_z"}.issubset(parts) or {"mix_beta", "mix_dt"}.issubset(parts)):
        return spec.delta.key_heads
    return qkv_groups if parts.issubset(_QKV_PARTS) else 1


def _kv_b_places(spec: ModelSpec, mla: MlaSpec, places: Mapping[str, Place], prefix: str) -> dict[str, Place]:
    """Return the places of `k_b` and `v_b` if a tensor has, for each head, the matrix of its keys and of its values."""
    keys, values = (f"{prefix}k_b", f"{prefix}v_b")
    stored = places[keys].stored
    if stored != places[values].stored:
        return {}
    size = mla.key_dim + mla.value_dim
    heads = np.arange(0, spec.num_heads * size, size)[:, None]
    rows = [(heads + range(*span)).reshape(-1) for span in ((0, mla.key_dim), (mla.key_dim, size))]
    whole = Place(stored, (spec.num_heads * size, mla.kv_rank))
    return {keys: replace(whole, rows=rows[0], num_turned=spec.num_heads), values: replace(whole, rows=rows[1])}


def _fuse(shapes: list[Shape], groups: int) -> tuple[Shape, list[Rows | None]]:
    """Return the shape of a tensor that holds matrices or vectors one after the other, and their rows in it."""
    if len(shapes) == 1:
        return shapes[0], [None]
    is_vector = shapes[0][0] == 1
    counts = [shape[1] if is_vector else shape[0] for shape in shapes]
    starts = np.cumsum([0, *counts]).tolist()
    slices: list[Rows | None] = []
    for start, count in zip(starts, counts, strict=False):
        rows: Rows = slice(start, start + count)
        if groups > 1:
            firsts = np.arange(groups)[:, None] * (starts[-1] // groups) + start // groups
            rows = (firsts + np.arange(count // groups)).reshape(-1)
        slices.append(rows)
    return (1, starts[-1]) if is_vector else (starts[-1], shapes[0][1]), slices


def _rotary_rows(rows: Rows | None, spec: ModelSpec, name: str, shape: Shape, interleaved: bool) -> Rows | None:
    """Put the rows of q and k in the rotary order of the kernels."""
    prefix, _, part = name.rpartition(".")
    layer = int(prefix.rpartition(".")[2]) if prefix else -1
    turning = _turning_rows(spec, layer, part) if prefix else None
    rope = spec.rope(layer) if turning else None
    order = None if rope is None else rotary_order(rope, spec.rope_head_dim(layer), interleaved=interleaved)
    if order is None or turning is None:
        return rows
    first, size = turning
    order = np.concatenate([np.arange(first), first + order])
    count = max(shape) if shape[0] == 1 else shape[0]
    heads = np.arange(0, count, size)[:, None] + order
    stored = np.arange(count) if rows is None else np.arange(rows.stop)[rows] if isinstance(rows, slice) else rows
    permuted: npt.NDArray[np.intp] = stored[heads.reshape(-1)]
    return permuted


def _turning_rows(spec: ModelSpec, layer: int, part: str) -> tuple[int, int] | None:
    """Return the first row that turns of a head, and the size of a head, in a weight; None if none of them turns."""
    if (mla := spec.mla) is None:
        return (0, spec.attention(layer).head_dim) if part in _ROTARY_PARTS else None
    latent = (mla.kv_rank, mla.kv_rank + mla.rope_dim)
    return {"q_b": (mla.key_dim, mla.query_dim), "kv_a": latent, "kv_a_bias": latent}.get(part)


def rotary_order(rope: RopeSpec, head_dim: int, *, interleaved: bool) -> npt.NDArray[np.intp] | None:
    """
    Return the stored row of each row of a head, or None if they are in order.

    The kernels rotate the pairs (i, i + head_dim / 2), of which the last ones may have the frequency 0. Checkpoints
    store pairs of the first `rotary_dim` rows, as halves (i, i + rotary_dim / 2) or interleaved (2 i, 2 i + 1), and
    then the rows that are not rotated. The scores of q and k do not change when both are permuted in the same way.
    """
    rotary_dim = head_dim if rope.kind == "proportional" else rope.rotary_dim or head_dim
    if rotary_dim == head_dim and not interleaved:
        return None
    turning = np.arange(rotary_dim).reshape(-1, 2).T if interleaved else np.arange(rotary_dim).reshape(2, -1)
    still = np.arange(rotary_dim, head_dim).reshape(2, -1)
    return np.concatenate([turning, still], axis=1).reshape(-1)
