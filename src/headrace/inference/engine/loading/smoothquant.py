"""
SmoothQuant at load: the output of `headrace quantize`, made once and cached beside the packed weights.

The cache key covers the weights, the rotary embedding, the calibration texts as tokens and the strengths. If several
workers start at the same time, one of them writes the folder and the others wait for its lock.
"""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.core.errors import InsufficientMemory, SettingsError
from headrace.core.progress import Progress
from headrace.core.sizes import format_size
from headrace.core.telemetry import get_logger
from headrace.inference.models.calibration_texts import MAX_SAMPLE_TOKENS, MAX_SAMPLES, calibration_samples
from headrace.inference.models.folder_export import new_folder
from headrace.inference.models.hf_checkpoint import read_hf_weights
from headrace.inference.models.model import Model
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.sources import PACKED_FOLDER
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import Encoding, WeightSource

_VERSION: Final = 1
"""Incremented when the same model, texts and strengths give different weights."""
_LAYER_COPIES: Final = 4
"""Simultaneous float32 copies of the largest layer: read, smoothed, evaluated, rounded."""
_ACTIVATION_COPIES: Final = 6


def smoothed_weights(
    model: Model,
    *,
    alpha: float | None,
    cache_dir: Path,
    available_bytes: int,
    progress: Progress,
    max_samples: int = MAX_SAMPLES,
) -> WeightSource:
    """
    Return the model's weights as smoothed W8A8, from the cache or computed now.

    The weights of an int8 checkpoint are returned unchanged: they cannot be smoothed. Without `alpha`, the strength is
    searched.

    Raises:
        UnsupportedModel: A layer is of a kind that cannot be quantized.
        BrokenModel: A weight or an activation is not finite.
        InsufficientMemory: The largest layer does not fit in float32.
        SettingsError: The cache cannot be written.
    """
    if model.weights.dominant_encoding is Encoding.I8:
        get_logger().warning("smoothquant.skipped", message=f"{model.name} is int8 already and is served as it is.")
        return model.weights
    from headrace.inference.runner.quantize import check_can_quantize
    from headrace.inference.runner.smoothing import strengths

    check_can_quantize(model)
    alphas = strengths(alpha)
    samples = calibration_samples(model, None, max_samples=max_samples, max_sample_tokens=MAX_SAMPLE_TOKENS)
    folder = cache_dir / PACKED_FOLDER / f"{_key(model, samples, alphas)}.smoothquant"
    try:
        with _locked(folder):
            if not folder.is_dir():
                _check_memory(model.spec, sum(map(len, samples)), available_bytes)
                _make(model, folder, samples, alphas, progress)
    except OSError as error:
        raise SettingsError(
            f"The smoothed weights of {model.name} cannot be written to {folder.parent}: {error.strerror or error}. "
            "Free disk space or set cache_dir; dtype w8a8 does without them.",
            name="cache_dir",
        ) from error
    return read_hf_weights(folder)


def _key(model: Model, samples: Sequence[Sequence[int]], alphas: Sequence[float]) -> str:
    identity = json.dumps([_VERSION, model.weights.fingerprint, repr(model.spec.ropes), samples, alphas])
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(
    model: Model, folder: Path, samples: Sequence[Sequence[int]], alphas: Sequence[float], progress: Progress
) -> None:
    from headrace.inference.runner.quantize import write_quantized

    for unfinished in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    with new_folder(folder) as building:
        write_quantized(model, building, samples, alphas=alphas, progress=progress)


def _check_memory(spec: ModelSpec, num_tokens: int, available_bytes: int) -> None:
    sizes = {name: 4 * rows * columns for name, (rows, columns) in expected_shapes(spec).items()}
    layer_bytes = sum(size for name, size in sizes.items() if name.startswith("layers.0."))
    width = max(columns for _, columns in expected_shapes(spec).values())
    needed = _LAYER_COPIES * layer_bytes + sizes["embed"] + _ACTIVATION_COPIES * 4 * num_tokens * width
    if needed > available_bytes:
        raise InsufficientMemory(
            f"Smoothing needs {format_size(needed)} for its largest layer, the embedding and the activations of the "
            f"calibration texts; {format_size(available_bytes)} are available. Quantize on a larger machine "
            "(`headrace quantize`) and serve the folder, or choose dtype w8a8.",
            needed_bytes=needed,
            available_bytes=available_bytes,
        )
