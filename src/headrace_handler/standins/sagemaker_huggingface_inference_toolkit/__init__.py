"""
Stand-in for the package of SageMaker's Hugging Face images.

`decoder_encoder` has request bodies as arguments of a transformers pipeline, and its results as response bodies.
`handler_service` has the class that a model server loads; Headrace's own contract calls user code without it.
"""

import base64
import datetime as dt
import io
import json
from typing import Any

from sagemaker_inference import errors, utils
from sagemaker_inference.content_types import ANY, CSV, JSON, NPY, OCTET_STREAM, UTF8_TYPES  # noqa: F401 - names of ours too
from sagemaker_inference.decoder import decode as _decode_array

from headrace_handler import client_data
from headrace_handler.arrays import array_to_npy
from headrace_handler.client_data import decode_csv, open_image
from headrace_handler.contracts.sagemaker import pipelines
from headrace_handler.contracts.sagemaker.profiles import huggingface
from headrace_handler.submodules import add_submodules

JPEG = "image/jpeg"
PNG = "image/png"
TIFF = "image/tiff"
BMP = "image/bmp"
GIF = "image/gif"
WEBP = "image/webp"
X_IMAGE = "image/x-image"
VISION_TYPES = [JPEG, PNG, TIFF, BMP, GIF, WEBP, X_IMAGE]
FLAC = "audio/x-flac"
MP3 = "audio/mpeg"
WAV = "audio/wave"
OGG = "audio/ogg"
X_AUDIO = "audio/x-audio"
AUDIO_TYPES = [FLAC, MP3, WAV, OGG, X_AUDIO]


def decode_json(content: Any) -> Any:
    return json.loads(content)


def decode_image(bpayload: Any) -> dict[str, Any]:
    return {"inputs": open_image(bpayload).convert("RGB")}


def decode_audio(bpayload: Any) -> dict[str, Any]:
    return {"inputs": bytes(bpayload)}


def _plain(value: Any) -> Any:
    """Return what `json` can write for numbers and arrays of numpy and torch, times and images."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dt.datetime):
        return str(value)
    if hasattr(value, "save") and hasattr(value, "mode"):  # an image of PIL, which may not be installed
        return base64.b64encode(encode_image(value)).decode()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def encode_json(content: Any, accept_type: str | None = None) -> str:  # noqa: ARG001
    return json.dumps(content, ensure_ascii=False, allow_nan=False, default=_plain, separators=(",", ":"))


def encode_csv(content: Any, accept_type: str | None = None) -> str:  # noqa: ARG001
    return client_data.encode_csv(content)


def encode_image(image: Any, accept_type: str = PNG) -> bytes:
    name = "PNG" if accept_type == X_IMAGE else accept_type.rpartition("/")[2].upper()
    buffer = io.BytesIO()
    image.save(buffer, format=name)
    return buffer.getvalue()


_encoder_map: dict[str, Any] = {
    NPY: lambda array_like, _accept_type=None: array_to_npy(array_like),
    CSV: encode_csv,
    JSON: encode_json,
} | dict.fromkeys(VISION_TYPES, encode_image)

_decoder_map: dict[str, Any] = (
    {NPY: lambda content: _decode_array(content, NPY), CSV: decode_csv, JSON: decode_json}
    | dict.fromkeys(VISION_TYPES, decode_image)
    | dict.fromkeys(AUDIO_TYPES, decode_audio)
)


def decode(content: Any, content_type: str | None = JSON) -> Any:
    if content_type not in _decoder_map:
        raise errors.UnsupportedFormatError(content_type)
    return _decoder_map[content_type](content)


def encode(content: Any, accept_type: str = JSON) -> Any:
    if accept_type not in _encoder_map:
        raise errors.UnsupportedFormatError(accept_type)
    return _encoder_map[accept_type](content, accept_type)


class HuggingFaceHandlerService:
    """A pipeline with its decoding and encoding, for subclasses."""

    def __init__(self) -> None:
        self.model_dir: str | None = None
        self.model: Any = None
        self.device: int = -1
        self.context: Any = None
        self.initialized = False

    def initialize(self, context: Any) -> None:
        self.context = context
        self.model_dir = context.system_properties.get("model_dir")
        gpu = context.system_properties.get("gpu_id")
        self.device = -1 if gpu is None else int(gpu)
        self.model = self.load(self.model_dir)
        self.initialized = True

    def load(self, model_dir: Any, context: Any = None) -> Any:  # noqa: ARG002
        return pipelines.load(str(model_dir), None if self.device < 0 else self.device)

    def preprocess(self, input_data: Any, content_type: Any, context: Any = None) -> Any:  # noqa: ARG002
        return decode(input_data, content_type)

    def predict(self, data: Any, model: Any, context: Any = None) -> Any:  # noqa: ARG002
        return huggingface.predict(data, model)

    def postprocess(self, prediction: Any, accept: str, context: Any = None) -> Any:  # noqa: ARG002
        return encode(prediction, accept)

    def transform_fn(self, model: Any, input_data: Any, content_type: Any, accept: str, context: Any = None) -> Any:
        data = self.preprocess(input_data, content_type, context)
        return self.postprocess(self.predict(data, model, context), accept, context)

    def handle(self, data: list[Any], context: Any) -> list[Any]:
        if not self.initialized:
            self.initialize(context)
        headers = context.request_processor[0].get_request_properties()
        content_type = utils.retrieve_content_type_header(headers)
        accept = headers.get("Accept") or headers.get("accept")
        if not accept or accept == ANY:
            accept = JSON
        body = data[0].get("body")
        if content_type in UTF8_TYPES:
            body = body.decode("utf-8")
        response = self.transform_fn(self.model, body, content_type, accept, context)
        context.set_response_content_type(0, accept)
        return [response]


_IMAGES = "JPEG PNG TIFF BMP GIF WEBP X_IMAGE VISION_TYPES"
add_submodules(
    __name__,
    {
        "content_types": f"JSON CSV OCTET_STREAM ANY NPY UTF8_TYPES {_IMAGES} FLAC MP3 WAV OGG X_AUDIO AUDIO_TYPES",
        "decoder_encoder": "decode encode decode_json decode_csv decode_image decode_audio encode_json encode_csv "
        "encode_image _decoder_map _encoder_map",
        "handler_service": "HuggingFaceHandlerService",
    },
)
