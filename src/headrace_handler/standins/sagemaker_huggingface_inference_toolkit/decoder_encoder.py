"""Request bodies as arguments of a transformers pipeline, and its results as response bodies."""

import base64
import csv
import datetime as dt
import io
import json
from typing import Any

from sagemaker_inference import errors
from sagemaker_inference.decoder import decode as _decode_array

from headrace_handler.arrays import array_to_npy
from headrace_handler.client_data import open_image

from . import content_types

_CSV_HEADERS = ("question", "context", "inputs")


def decode_json(content: Any) -> Any:
    return json.loads(content)


def decode_csv(string_like: str) -> dict[str, Any]:
    """Return the column `inputs` as a list, or all rows as objects; the first line must name the columns."""
    header = string_like.splitlines()[0].lower() if string_like.strip() else ""
    if not any(name in header for name in _CSV_HEADERS):
        raise ValueError(
            "You need to provide the correct CSV with Header columns to use it with the inference toolkit "
            "default handler."
        )
    rows = list(csv.DictReader(io.StringIO(string_like)))
    if rows and "inputs" in rows[0]:
        return {"inputs": [row["inputs"] for row in rows]}
    return {"inputs": rows}


def decode_image(bpayload: Any) -> dict[str, Any]:
    return {"inputs": open_image(bpayload).convert("RGB")}


def decode_audio(bpayload: Any) -> dict[str, Any]:
    return {"inputs": bytes(bpayload)}


def _decode_npy(content: Any) -> Any:
    return _decode_array(content, content_types.NPY)


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
    rows = content if isinstance(content, list) else list(content)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, rows[0].keys())
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def encode_image(image: Any, accept_type: str = content_types.PNG) -> bytes:
    name = "PNG" if accept_type == content_types.X_IMAGE else accept_type.rpartition("/")[2].upper()
    buffer = io.BytesIO()
    image.save(buffer, format=name)
    return buffer.getvalue()


def _encode_npy(array_like: Any, accept_type: str | None = None) -> bytes:  # noqa: ARG001
    return array_to_npy(array_like)


_encoder_map: dict[str, Any] = {
    content_types.NPY: _encode_npy,
    content_types.CSV: encode_csv,
    content_types.JSON: encode_json,
} | dict.fromkeys(content_types.VISION_TYPES, encode_image)

_decoder_map: dict[str, Any] = (
    {content_types.NPY: _decode_npy, content_types.CSV: decode_csv, content_types.JSON: decode_json}
    | dict.fromkeys(content_types.VISION_TYPES, decode_image)
    | dict.fromkeys(content_types.AUDIO_TYPES, decode_audio)
)


def decode(content: Any, content_type: str | None = content_types.JSON) -> Any:
    if content_type not in _decoder_map:
        raise errors.UnsupportedFormatError(content_type)
    return _decoder_map[content_type](content)


def encode(content: Any, accept_type: str = content_types.JSON) -> Any:
    if accept_type not in _encoder_map:
        raise errors.UnsupportedFormatError(accept_type)
    return _encoder_map[accept_type](content, accept_type)
