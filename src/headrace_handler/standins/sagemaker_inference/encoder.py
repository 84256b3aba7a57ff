"""Arrays as response bodies."""

import io
import json
from collections.abc import Callable
from typing import Any

from . import content_types, errors


def _as_list(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _array_to_json(array_like: Any) -> str:
    return json.dumps(array_like, default=_as_list)


def _array_to_npy(array_like: Any) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array_like)
    return buffer.getvalue()


def _array_to_csv(array_like: Any) -> str:
    import numpy as np

    stream = io.StringIO()
    np.savetxt(stream, array_like, delimiter=",", fmt="%s")
    return stream.getvalue()


_encoder_map: dict[str, Callable[[Any], Any]] = {
    content_types.NPY: _array_to_npy,
    content_types.CSV: _array_to_csv,
    content_types.JSON: _array_to_json,
}

SUPPORTED_CONTENT_TYPES = set(_encoder_map)


def encode(array_like: Any, content_type: str) -> Any:
    """
    Return the array as a body of the type: text for JSON and CSV, bytes for NPY.

    Raises:
        UnsupportedFormatError: `content_type` is none of the three.
    """
    if content_type not in _encoder_map:
        raise errors.UnsupportedFormatError(content_type)
    return _encoder_map[content_type](array_like)
