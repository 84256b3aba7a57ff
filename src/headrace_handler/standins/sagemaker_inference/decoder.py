"""Request bodies as arrays."""

import io
import json
from collections.abc import Callable
from typing import Any

from . import content_types, errors


def _json_to_numpy(string_like: Any, dtype: Any = None) -> Any:
    import numpy as np

    return np.array(json.loads(string_like), dtype=dtype)


def _csv_to_numpy(string_like: str, dtype: Any = None) -> Any:
    import numpy as np

    return np.genfromtxt(io.StringIO(string_like), dtype=dtype, delimiter=",")


def _npy_to_numpy(npy_array: Any) -> Any:
    import numpy as np

    # As the original: the endpoint's owner decides whom to trust with a pickle.
    return np.load(io.BytesIO(npy_array), allow_pickle=True)


def _npz_to_sparse(npz_bytes: Any) -> Any:
    import scipy.sparse

    return scipy.sparse.load_npz(io.BytesIO(npz_bytes))


_decoder_map: dict[str, Callable[[Any], Any]] = {
    content_types.NPY: _npy_to_numpy,
    content_types.CSV: _csv_to_numpy,
    content_types.JSON: _json_to_numpy,
    content_types.NPZ: _npz_to_sparse,
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
