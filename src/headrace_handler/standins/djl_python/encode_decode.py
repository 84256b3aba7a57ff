"""Decodes requests and encodes responses by their content types."""

import io
from typing import Any

from headrace_handler import client_data
from headrace_handler.client_data import encode_csv

from .inputs import Input
from .outputs import Output


def decode(inputs: Input, content_type: str | None, key: str | None = None, require_csv_headers: bool = True) -> Any:
    """Return the payload: what JSON holds, or `{"inputs": ...}` with a value by the content type."""
    if not content_type:
        return inputs.get_as_json(key) if inputs.get_as_bytes(key) else {"inputs": ""}
    if "application/json" in content_type:
        return inputs.get_as_json(key)
    if "text/csv" in content_type:
        return decode_csv(inputs, require_csv_headers)
    return {"inputs": _value(inputs, content_type, key)}


def _value(inputs: Input, content_type: str, key: str | None) -> Any:
    if "text/plain" in content_type:
        return [inputs.get_as_string(key)]
    if content_type.startswith("image/"):
        return inputs.get_as_image(key)
    if "tensor/npz" in content_type:
        return inputs.get_as_npz(key)
    if content_type in {"tensor/ndlist", "application/x-npy"}:
        return inputs.get_as_numpy(key)
    if content_type == "application/x-www-form-urlencoded":
        return inputs.get_as_string(key)
    return inputs.get_as_bytes(key)


def encode(outputs: Output, prediction: Any, content_type: str | None, key: str | None = None) -> None:
    """Add a prediction to the outputs, with its `Content-Type`."""
    if not content_type or "application/json" in content_type:
        outputs.add_as_json(prediction, key=key).add_property("Content-Type", "application/json")
    elif "text/csv" in content_type:
        outputs.add(encode_csv(prediction), key=key).add_property("Content-Type", "text/csv")
    elif "tensor/npz" in content_type:
        outputs.add_as_npz(prediction, key=key).add_property("Content-Type", "tensor/npz")
    else:
        outputs.add_as_numpy(prediction, key=key).add_property("Content-Type", "tensor/ndlist")


def decode_csv(inputs: Input, require_headers: bool = True) -> Any:
    """
    Return `{"inputs": ...}` of rows under a header, or without `require_headers` an array of numbers.

    Raises `ValueError`: the header names none of the known columns, or a value is not a number.
    """
    text = inputs.get_as_string()
    return client_data.decode_csv(text) if require_headers else _numbers(text)


def _numbers(text: str) -> Any:
    import numpy as np

    numbers = np.genfromtxt(io.StringIO(text), delimiter=",")
    if np.isnan(numbers).any():
        raise ValueError("CSV contains non-numeric data. Please provide numeric data only.")
    return numbers
