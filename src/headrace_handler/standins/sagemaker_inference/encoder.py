"""Arrays as response bodies."""

import io
from collections.abc import Callable
from typing import Any

from headrace_handler.arrays import array_to_json, array_to_npy

from . import content_types, errors


def _array_to_csv(array_like: Any) -> str:
    import numpy as np

    stream = io.StringIO()
    np.savetxt(stream, array_like, delimiter=",", fmt="%s")
    return stream.getvalue()


_encoder_map: dict[str, Callable[[Any], Any]] = {
    content_types.NPY: array_to_npy,
    content_types.CSV: _array_to_csv,
    content_types.JSON: array_to_json,
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
