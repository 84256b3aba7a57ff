"""Write a complete Hugging Face folder with quantized weights: config, tokenizer, chat template and weights."""

from collections.abc import Sequence
from pathlib import Path

from headrace.core.progress import Progress, no_progress
from headrace.inference.models.folder_export import export_files, family_of
from headrace.inference.models.model import SMOOTHED_KEY, Model
from headrace.inference.models.places import folder_places
from headrace.inference.models.quantized.compressed_tensors import w4a16_config, w8a8_config
from headrace.inference.models.weight_files import SINGLE
from headrace.inference.models.weights import Encoding
from headrace.inference.runner.quantize import LayerReport, float_encoding, quantize_weights


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
    Write a model as W8A8 (or with 4 bits as W4A16) into an empty folder.

    Args:
        model: a model that `check_can_quantize` accepts.
        folder: the target folder.
        samples: token ids of the calibration texts.
        bits: 8 or 4.
        alphas: smoothing strengths to choose from, with 8 bits; empty for no smoothing.
        progress: called after each layer.

    Raises:
        BrokenModel: a weight or an activation is not finite.
        OSError: the disk is full.
    """
    family = family_of(model.spec)
    routers = [place.stored for name, place in folder_places(family, model.spec).items() if name.endswith("router")]
    floats = [name.removesuffix(".weight") for name in (family.tensors["lm_head"], *routers)]
    changes: dict[str, object] = {
        "torch_dtype": "float16" if float_encoding(model) is Encoding.F16 else "bfloat16",
        "quantization_config": (w8a8_config if bits == 8 else w4a16_config)(floats),
    }
    if bits == 8 and alphas:
        changes[SMOOTHED_KEY] = True
    export_files(model, folder, changes)
    return quantize_weights(model, samples, folder / SINGLE, bits=bits, alphas=alphas, progress=progress)
