"""Request bodies as arrays."""

import io
from collections.abc import Callable
from typing import Any

from headrace_handler.arrays import json_to_numpy, npy_to_numpy, npz_to_sparse

from . import content_types, errors


def _csv_to_numpy(string_like: str, dtype: Any = None) -> Any:
    import numpy as np

    return np.genfromtxt(io.StringIO(string_like), dtype=dtype, delimiter=",")


_decoder_map: dict[str, Callable[[Any], Any]] = {
    content_types.NPY: npy_to_numpy,
    content_types.CSV: _csv_to_numpy,
    content_types.JSON: json_to_numpy,
    content_types.NPZ: npz_to_sparse,
}


def decode(obj: Any, content_type: str | None) -> Any:
    """
    Return the array that `obj` holds.

    Raises:
        UnsupportedFormatError: `content_type` is not one of JSON, CSV, NPY and NPZ.
    """
    if content_type not in _decoder_map:
        raise errors.UnsupportedFormatError(content_type)
    return _decoder_map[content_type](obj)
