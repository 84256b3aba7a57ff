import csv
import io
from collections.abc import Callable
from typing import Any

from headrace_handler.arrays import array_to_json, array_to_npy, json_to_numpy, npy_to_numpy
from headrace_handler.contracts.sagemaker import recordio

from . import _content_types, _errors


def csv_to_numpy(string_like: str, dtype: Any = None) -> Any:
    """
    Return the cells without axes of length one: text, or of `dtype`.

    Without a `dtype` cells that are all numbers become floats, as numpy's `astype(None)` does.
    """
    import numpy as np

    try:
        array = np.array(list(csv.reader(io.StringIO(string_like), strict=True))).squeeze()
    except (csv.Error, ValueError) as error:
        raise _errors.ClientError(f"Error while decoding csv: {error}") from error
    try:
        return array.astype(dtype)
    except ValueError as error:
        if dtype is None:
            return array
        raise _errors.ClientError(f"Error while writing numpy array: {error}. dtype is: {dtype}") from error


def array_to_csv(array_like: Any) -> str:
    """Return a line for each row; the values of a vector are rows of their own."""
    import numpy as np

    array = np.array(array_like)
    if array.ndim == 1:
        array = array.reshape(-1, 1)
    stream = io.StringIO()
    try:
        csv.writer(stream, lineterminator="\n", strict=True).writerows(array)
    except csv.Error as error:
        raise _errors.ClientError(f"Error while encoding csv: {error}") from error
    return stream.getvalue()


def array_to_recordio_protobuf(array_like: Any, labels: Any = None) -> bytes:
    """Return a record for each row of a vector, a matrix or a scipy sparse matrix."""
    if len(array_like.shape) == 1:
        array_like = array_like.reshape(1, array_like.shape[0])
    return recordio.write_matrix(array_like, labels)


_encoders_map: dict[str, Callable[[Any], Any]] = {
    _content_types.NPY: array_to_npy,
    _content_types.CSV: array_to_csv,
    _content_types.JSON: array_to_json,
}
_decoders_map: dict[str, Callable[[Any], Any]] = {
    _content_types.NPY: npy_to_numpy,
    _content_types.CSV: csv_to_numpy,
    _content_types.JSON: json_to_numpy,
}


def decode(obj: Any, content_type: str | None) -> Any:
    if content_type not in _decoders_map:
        raise _errors.UnsupportedFormatError(content_type)
    return _decoders_map[content_type](obj)


def encode(array_like: Any, content_type: str) -> Any:
    if content_type not in _encoders_map:
        raise _errors.UnsupportedFormatError(content_type)
    return _encoders_map[content_type](array_like)
