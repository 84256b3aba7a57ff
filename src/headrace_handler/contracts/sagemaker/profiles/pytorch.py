"""The image `pytorch-inference`."""

from pathlib import Path
from typing import Any

from headrace_handler.contracts.sagemaker.functions import Function
from headrace_handler.stray_files import listed

from .base import CSV, is_text, media_type
from .toolkit import Toolkit


class ModelLoadError(Exception):
    """The file is not in TorchScript format."""


class PyTorch(Toolkit):
    def defaults(self) -> dict[str, Function]:
        return {
            "model_fn": _load,
            "input_fn": _tensor,
            "predict_fn": _predict,
            "output_fn": _encode,
        }


def _device() -> Any:
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _load(model_dir: str) -> Any:
    import torch

    path = Path(model_dir, "model.pt")
    if not path.exists():
        # The original tests names against its current directory, the model's; here the folder counts.
        names = sorted(file.name for file in listed(Path(model_dir), ["*.pt", "*.pth"]))
        if len(names) != 1:
            raise ValueError(f"Exactly one .pth or .pt file is required for PyTorch models: {names}")
        path = Path(model_dir, names[0])
    device = _device()
    try:
        return torch.jit.load(path, map_location=device).to(device)
    except RuntimeError as error:
        raise ModelLoadError(f"Failed to load {path}. Please ensure model is saved using torchscript.") from error


def _tensor(data: Any, content_type: str | None) -> Any:
    import numpy as np
    import numpy.lib.recfunctions
    import torch
    from sagemaker_inference import decoder

    array = decoder.decode(data, media_type(content_type))
    if array.dtype.names:  # CSV whose columns are of different types, which the image cannot turn into a tensor
        array = np.lib.recfunctions.structured_to_unstructured(array)
    tensor = torch.tensor(array, dtype=torch.float32) if is_text(content_type) else torch.from_numpy(array)
    return tensor.to(_device())


def _predict(data: Any, model: Any) -> Any:
    import torch

    device = _device()
    with torch.no_grad():
        model.to(device).eval()
        return model(data.to(device))


def _encode(prediction: Any, accept: str) -> Any:
    import torch

    if isinstance(prediction, torch.Tensor):
        prediction = prediction.detach().cpu().numpy().tolist()
    encoded, content_type = Toolkit.encode(prediction, accept)
    return encoded.encode() if content_type == CSV else encoded, content_type
