"""Decodes requests and encodes responses by their content types."""

import csv
import io
from typing import Any

from .inputs import Input
from .outputs import Output

_CSV_HEADERS = ("question", "context", "inputs")


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

    Raises:
        ValueError: the header names none of the known columns, or a value is not a number.
    """
    text = inputs.get_as_string()
    if not require_headers:
        return _numbers(text)
    header = (text.splitlines() or [""])[0].lower()
    if not any(name in header for name in _CSV_HEADERS):
        raise ValueError(
            "You need to provide the correct CSV with Header columns to use it with the inference toolkit default"
            " handler."
        )
    rows = list(csv.DictReader(io.StringIO(text)))
    if rows and "inputs" in rows[0]:
        return {"inputs": [row["inputs"] for row in rows]}
    return {"inputs": rows}


def _numbers(text: str) -> Any:
    import numpy as np

    numbers = np.genfromtxt(io.StringIO(text), delimiter=",")
    if np.isnan(numbers).any():
        raise ValueError("CSV contains non-numeric data. Please provide numeric data only.")
    return numbers


def encode_csv(content: Any) -> str:
    """Return a list of dicts as CSV, with a header of the first one's keys."""
    rows = list(content)
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0].keys())
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
