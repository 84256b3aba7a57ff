"""`sagemaker-inference`: the toolkit that images for PyTorch, MXNet and users' own build on."""

import os
import traceback
from pathlib import Path
from typing import Any

from headrace_handler.client_data import InvalidBody
from headrace_handler.contract import Item
from headrace_handler.contracts.sagemaker.responses import Response, UnsupportedOutput, server_error
from headrace_handler.contracts.sagemaker.user_code import Function, header
from headrace_handler.stray_files import listed

from .base import CSV, Profile, accept_of, body, choose_type, is_text, media_type, text_if_known


class Toolkit(Profile):
    def defaults(self) -> dict[str, Function]:
        from sagemaker_inference.default_inference_handler import DefaultInferenceHandler

        handler = DefaultInferenceHandler()
        return {
            "model_fn": handler.default_model_fn,
            "input_fn": self.decode,
            "predict_fn": handler.default_predict_fn,
            "output_fn": self.encode,
        }

    def load(self) -> None:
        if "pre_model_fn" in self.functions:
            self.run("pre_model_fn", self.model_dir, self.base_context)
        super().load()
        if "model_warmup_fn" in self.functions:
            self.run("model_warmup_fn", self.model_dir, self.model, self.base_context)

    def answer(self, item: Item, context: Any) -> Response:
        content_type = header(item.headers, "content-type", "contenttype")
        accept = accept_of(item)
        data = text_if_known(body(item), content_type)
        return respond(self.transform(data, content_type, accept, context), accept, context)

    @staticmethod
    def decode(data: Any, content_type: str | None) -> Any:
        from sagemaker_inference import decoder

        return decoder.decode(data, media_type(content_type))

    @staticmethod
    def encode(prediction: Any, accept: str) -> Any:
        from sagemaker_inference import encoder, errors

        content_type = choose_type(accept, encoder.SUPPORTED_CONTENT_TYPES)
        if content_type is None:
            raise errors.UnsupportedFormatError(accept)
        return encoder.encode(prediction, content_type), content_type

    def fail(self, error: Exception) -> Response:
        from sagemaker_inference.errors import BaseInferenceToolkitError, GenericInferenceToolkitError

        if isinstance(error, UnsupportedOutput):
            return server_error(503, "Unsupported model output data type.")
        status = error.status if isinstance(error, InvalidBody) else 500
        known = error if isinstance(error, BaseInferenceToolkitError) else None
        known = known or GenericInferenceToolkitError(status, str(error))
        trace = "".join(traceback.format_exception(error)) if shows_traceback() else ""
        phrase = " ".join(str(known.phrase).splitlines())
        return Response(status=int(known.status_code), phrase=phrase, body=f"{known.message}\n{trace}")


def respond(result: Any, accept: str, context: Any) -> Response:
    """Return the response for the result of user code and for the values that it set in the context."""
    content, content_type = result if isinstance(result, tuple) else (result, accept)
    status, phrase = context.get_response_status(0)
    own = [(name, value) for name, value in context.get_response_headers(0).items() if name.lower() != "content-type"]
    headers = [("Content-Type", content_type), *own] if content_type else own
    return Response(status=status, phrase=phrase or "", headers=headers, body=content)


def shows_traceback() -> bool:
    """Return whether errors carry the traceback, as the toolkits do; the log has it in any case."""
    return os.environ.get("HEADRACE_ERROR_TRACEBACK", "true").lower() != "false"


class ModelLoadError(Exception):
    """The file is not in TorchScript format."""


class PyTorch(Toolkit):
    """The functions of the image `pytorch-inference`, which make tensors of arrays."""

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
