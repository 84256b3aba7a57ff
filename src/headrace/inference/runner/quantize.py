"""Write a complete Hugging Face folder with weights quantized layer by layer, in the formats of compressed-tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.core.progress import Progress, no_progress
from headrace.inference.models.decoding import decode
from headrace.inference.models.families.family import HEAD_INDEX, QKV_INDEX, Family
from headrace.inference.models.families.registry import family_of
from headrace.inference.models.folder_export import export_files
from headrace.inference.models.model import SMOOTHED_KEY, Model
from headrace.inference.models.places import folder_places, merge
from headrace.inference.models.quantized.compressed_tensors import w4a16_config, w8a8_config
from headrace.inference.models.safetensors_writer import STORED, SafetensorsWriter, encode_floats
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.weight_files import SINGLE
from headrace.inference.models.weights import Encoding, as_float32, dominant_bits
from headrace.inference.runner.calibration import trace_layers
from headrace.inference.runner.cpu import default_threads
from headrace.inference.runner.folder_formats import Int4Groups, Int8Rows, MatrixFormat, output_error
from headrace.inference.runner.smoothing import Joint, smooth_layer
from headrace.inference.runner.step import Float32

MATRICES: Final = ("q", "k", "v", "o", "gate", "up", "down")
_MIXED: Final = ("mix_q", "mix_k", "mix_v", "mix_z")
"""Matrices of a delta layer, which all read the input that is recorded as `mix_in`."""
_STATE_MATRICES: Final = frozenset({*_MIXED, "mix_in", "mix_out"})
_CONVOLUTION: Final = "mix_conv"
_EMBEDDINGS: Final = frozenset({"embed", "layer_embed", "positions", "token_types"})
_REQUIRED_PARTS: Final = frozenset({*MATRICES, "attn_norm", "mlp_norm"})
"""Parts of a layer that can be smoothed."""
_KNOWN_PARTS: Final = _REQUIRED_PARTS | {
    *("post_attn_norm", "post_mlp_norm", "q_norm", "k_norm"),
    *("q_bias", "k_bias", "v_bias", "o_bias"),
}
_LAST: Final = ("final_norm", "final_norm_bias", "lm_head", "lm_head_bias")
"""Weights after the layers."""
EXPERT: Final = ".experts."
_INT4_BITS: Final = 4
_TASK: Final = "Quantizing"


@dataclass(frozen=True, slots=True)
class LayerReport:
    """The scales chosen for the joints of a layer (`qkv`, `o`, `gate_up`, `down`), or the errors of its matrices."""

    index: int
    joints: dict[str, Joint]
    """Empty with 4 bits."""
    errors: dict[str, float]
    """With 4 bits: squared error of the outputs of each stored matrix, relative to their squares (`output_error`)."""


def check_can_quantize(model: Model, *, bits: int = 8) -> None:
    """Raise `UnsupportedModel` for a model that cannot be quantized correctly, before any work is done."""
    if model.weights.dominant_encoding is Encoding.I8:
        raise UnsupportedModel(f"{model.name} is quantized to int8 already; start from the original checkpoint.")
    if bits == _INT4_BITS and dominant_bits(model.weights, expected_shapes(model.spec)) <= _INT4_BITS:
        raise UnsupportedModel(
            f"{model.name} is stored in 4 bits already. Start from the original checkpoint, or serve it as it is."
        )
    if model.spec.moe is not None and bits != _INT4_BITS:
        raise UnsupportedModel(
            f"{model.name} has experts, whose inputs cannot be smoothed: the router reads them too. "
            "Use --bits 4, which smooths nothing, or serve it with --dtype w8a8, which quantizes without calibration."
        )
    kind = _other_kind(model)
    if kind is not None:
        raise UnsupportedModel(
            f"{model.name} is {kind}, which `headrace quantize` does not support. "
            "Serve it with --dtype w8a8, which quantizes without calibration."
        )
    if bits != _INT4_BITS:
        _check_can_smooth(model)


def _other_kind(model: Model) -> str | None:
    family = family_of(model.spec)
    places = folder_places(family, model.spec)
    experts = {name: place.stored for name, place in places.items() if EXPERT in name}
    has_config = model.path.is_file() or (model.path / "config.json").is_file()
    kinds = {
        "a folder without a config.json": not has_config,
        "an encoder": not model.spec.is_causal,
        "a network with latent attention": model.spec.mla is not None,
        "a network whose matrices have factors": any(place.row_factors for place in places.values()),
        "a network whose convolutions are stored in parts": any(QKV_INDEX in place.stored for place in places.values()),
        "a network with numbers of its activations (xIELU)": model.spec.activation == "xielu",
        "a network whose matrices are stored transposed": family.transposed,
        "a network with norms for each head": any(HEAD_INDEX in place.stored for place in places.values()),
        "a mixture of experts with biases": any(name.endswith("_bias") for name in experts),
        "a mixture of experts whose checkpoints stack the experts in one tensor": len(set(experts.values()))
        < len(experts)
        or (model.spec.moe is not None and model.spec.moe.own_norms),
    }
    return next((kind for kind, is_so in kinds.items() if is_so), None)


def _check_can_smooth(model: Model) -> None:
    parts = {name.rpartition(".")[2] for name in model.weights.names() if name.startswith("layers.")}
    unknown, missing = parts - _KNOWN_PARTS, _REQUIRED_PARTS - parts
    has_ones = any(place.is_ones for place in folder_places(family_of(model.spec), model.spec).values())
    if unknown or missing or has_ones or model.spec.attention_shapes:
        difference = "with norms without weights" if has_ones else "with different heads"
        if unknown or missing:
            difference = f"with {', '.join(sorted(unknown))}" if unknown else f"without {', '.join(sorted(missing))}"
        raise UnsupportedModel(
            f"{model.name} has layers {difference}, which cannot be smoothed. Use --bits 4, which smooths nothing, "
            "or serve it with --dtype w8a8, which quantizes without calibration."
        )


def write_quantized(
    model: Model,
    folder: Path,
    samples: Sequence[Sequence[int]],
    *,
    bits: int = 8,
    alphas: Sequence[float],
    progress: Progress = no_progress,
) -> list[LayerReport]:
    """
    Write a model that `check_can_quantize` accepts into an empty folder, as W8A8 or with 4 bits as W4A16.

    `samples` are the token ids of the calibration texts. With 8 bits, `alphas` are the smoothing strengths to choose
    from; empty for no smoothing.

    Raises:
        BrokenModel: a weight or an activation is not finite.
        UnsupportedModel: a matrix has no such format.
        OSError: the disk is full.
    """
    floats = [name.removesuffix(".weight") for name in _float_layers(model)]
    changes: dict[str, object] = {
        "torch_dtype": "float16" if float_encoding(model) is Encoding.F16 else "bfloat16",
        "quantization_config": (w8a8_config if bits == 8 else w4a16_config)(floats),
    }
    if bits == 8 and alphas:
        changes[SMOOTHED_KEY] = True
    export_files(model, folder, changes)
    return quantize_weights(model, samples, folder / SINGLE, bits=bits, alphas=alphas, progress=progress)


def _float_layers(model: Model) -> list[str]:
    """Return the stored matrices that are no tables and stay in floating point: LM head, routers, gates of heads."""
    family = family_of(model.spec)
    places = folder_places(family, model.spec)
    quantized = {place.stored for name, place in places.items() if _is_matrix(name)}
    others = [
        place.stored
        for name, place in places.items()
        if (place.is_matrix or name.endswith("router"))
        and place.stored not in quantized
        and name.rpartition(".")[2] not in {_CONVOLUTION, *_EMBEDDINGS}
    ]
    return list(dict.fromkeys((family.tensors["lm_head"], *others)))


def quantize_weights(
    model: Model,
    samples: Sequence[Sequence[int]],
    file: Path,
    *,
    bits: int = 8,
    alphas: Sequence[float],
    progress: Progress = no_progress,
) -> list[LayerReport]:
    """Write the weights of a model to a new safetensors file; arguments and errors are those of `write_quantized`."""
    is_int4 = bits == _INT4_BITS
    rows: MatrixFormat = Int4Groups(float_encoding(model), threads=default_threads()) if is_int4 else Int8Rows()
    writing = _Writing(model, rows)
    total = model.spec.num_layers
    reports = []
    with SafetensorsWriter(file, writing.plan()) as out:
        for name in writing.first:
            writing.copy_floats(out, name)
        progress(_TASK, 0, total, "layers")
        for layer in trace_layers(model.spec, model.weights, samples):
            if is_int4:
                importance = {part: inputs.mean_squares for part, inputs in layer.inputs.items()}
                importance |= {part: importance["mix_in"] for part in _MIXED if part in layer.weights}
                errors = writing.write_layer(out, layer.index, layer.weights, importance)
                reports.append(LayerReport(layer.index, {}, errors))
            else:
                smoothed = smooth_layer(
                    model.spec,
                    layer,
                    alphas=alphas,
                    norm_rounding=writing.norm_rounding,
                    bias_rounding=writing.rounding,
                )
                writing.write_layer(out, layer.index, smoothed.weights, {})
                reports.append(LayerReport(layer.index, smoothed.joints, {}))
            progress(_TASK, layer.index + 1, total, "layers")
        for name in writing.last:
            writing.copy_floats(out, name)
    return reports


class _Writing:
    """The names and types of a model's tensors in the new file."""

    def __init__(self, model: Model, matrices: MatrixFormat) -> None:
        self._model = model
        self._matrices = matrices
        self._family: Family = family_of(model.spec)
        self._places = folder_places(self._family, model.spec)
        self.encoding = float_encoding(model)
        stored = [name for name, place in self._places.items() if not (name.startswith("layers.") or place.is_ones)]
        self.first = tuple(name for name in stored if name not in _LAST)
        """The weights before the layers."""
        self.last = tuple(name for name in _LAST if name in stored)

    def plan(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        layers = [self._tensors_of(index) for index in range(self._model.spec.num_layers)]
        planned: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name in (*self.first, *(names[0] for tensors in layers for names in tensors.values()), *self.last):
            stored, (rows, columns) = self._places[name].stored, self._places[name].shape
            if _is_matrix(name):
                planned |= self._matrices.plan(stored, (rows, columns))
            else:
                planned[stored] = (STORED[self._encoding_of(name)], _stored_shape(name, rows, columns))
        return planned

    def write_layer(
        self, out: SafetensorsWriter, index: int, weights: Mapping[str, Float32], importance: Mapping[str, Float32]
    ) -> dict[str, float]:
        """
        Write the weights of a layer by part, fused and ordered as its family stores them.

        Return the error of each matrix whose inputs have an `importance`.
        """
        errors = {}
        for stored, names in self._tensors_of(index).items():
            prefix = f"layers.{index}."
            values = merge((self._places[name], weights[name.removeprefix(prefix)]) for name in names)
            if not np.isfinite(values).all():
                raise BrokenModel(
                    f"Tensor {stored} of {self._model.name} contains numbers that are not finite.", name=stored
                )
            if _is_matrix(names[0]):
                part = names[0].removeprefix(prefix)
                rounded = self._matrices.round(stored, values, importance.get(part))
                for name, content in rounded.tensors.items():
                    out.write(name, content)
                if part in importance:
                    errors[part] = output_error(values, rounded.values, importance[part])
            else:
                self._write_floats(out, names[0], values)
        return errors

    def copy_floats(self, out: SafetensorsWriter, name: str) -> None:
        tensor, place = self._model.weights.load(name), self._places[name]
        if tensor.encoding is self.encoding and place.rows is None and not place.transposed:
            out.write(place.stored, tensor.data.reshape(-1))  # from the mapped file: Gemma 4's table of inputs is large
        else:
            self._write_floats(out, name, merge([(self._places[name], decode(self._model.weights.load(name)))]))

    def rounding(self, values: Float32) -> Float32:
        return as_float32(self._encode(values), self.encoding)

    def norm_rounding(self, values: Float32) -> Float32:
        """Round the weights of a norm as storing them does; some families store them without the 1."""
        offset = np.float32(self._family.norm_offset)
        return self.rounding(values - offset) + offset

    def _write_floats(self, out: SafetensorsWriter, name: str, values: Float32) -> None:
        if name.endswith(".mix_decay"):
            values = np.log(-values)
        values = values - np.float32(self._family.offset_of(name))
        out.write(self._places[name].stored, encode_floats(values.reshape(-1), self._encoding_of(name)))

    def _encode(self, values: Float32) -> npt.NDArray[np.uint8]:
        return encode_floats(values.reshape(-1), self.encoding)

    def _encoding_of(self, name: str) -> Encoding:
        """Return the encoding of a tensor in floating point; numbers of state layers stay in float32 if they were."""
        is_exact = name.rpartition(".")[2].startswith("mix_") and self._model.weights.encoding(name) is Encoding.F32
        return Encoding.F32 if is_exact else self.encoding

    def _tensors_of(self, index: int) -> dict[str, list[str]]:
        """Return the stored tensors of a layer, each with the weights that it holds, a quantized matrix first."""
        tensors: dict[str, list[str]] = {}
        for name in self._model.weights.names():
            if name.startswith(f"layers.{index}.") and not self._places[name].is_ones:
                tensors.setdefault(self._places[name].stored, []).append(name)
        return {stored: sorted(names, key=lambda name: not _is_matrix(name)) for stored, names in tensors.items()}


def float_encoding(model: Model) -> Encoding:
    """Return the encoding of tensors that stay in floating point: float16 if they were, else bfloat16."""
    return Encoding.F16 if model.weights.load("embed").encoding is Encoding.F16 else Encoding.BF16


def _is_matrix(name: str) -> bool:
    part = name.rpartition(".")[2]
    return part.removeprefix("shared_") in MATRICES or part in _STATE_MATRICES


def _stored_shape(name: str, rows: int, columns: int) -> tuple[int, ...]:
    if name.rpartition(".")[2] == _CONVOLUTION:
        return (rows, 1, columns)
    return (columns,) if rows == 1 else (rows, columns)
