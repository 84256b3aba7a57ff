"""Arrays in the formats that the stand-ins of the servers' packages share: NPY, NPZ and JSON."""

import io
import json
import math
import os
import zipfile
import zlib
from typing import Any

from headrace_handler.client_data import InvalidBody

PICKLES_VARIABLE = "HEADRACE_ALLOW_CLIENT_PICKLES"
"""Set to `true` by the owner of an endpoint, it lets clients send pickles, which run any code."""
_NPY, _ZIP = b"\x93NUMPY", b"PK"
_MAX_HEADER_BYTES = 10_000
"""numpy's own limit, which its older versions do not have: a header is an expression in Python."""
_FREE_ELEMENTS = 1 << 20
"""Elements that may have no bytes in the body, such as those of an array with an axis of length 0."""
_MAX_MEMBERS = 1000
_DIRECTORY_ENTRY = b"PK\x01\x02"
_MAX_NPZ_BYTES = 256 << 20
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)


def array_to_npy(array_like: Any) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array_like)
    return buffer.getvalue()


def npy_to_numpy(npy_array: Any) -> Any:
    """
    Return the array of a client's NPY file.

    Raises `InvalidBody`: the file is broken, describes more than it holds, or holds a pickle (see `PICKLES_VARIABLE`).
    """
    import numpy as np

    if os.environ.get(PICKLES_VARIABLE, "").lower() == "true":
        return np.load(io.BytesIO(npy_array), allow_pickle=True)
    data = bytes(npy_array)
    _check_header(data)
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # numpy's parser of the header may raise anything
        if "allow_pickle" in str(error):
            raise _pickled() from error
        raise InvalidBody(f"The array cannot be read: {str(error) or type(error).__name__}.") from error
    return checked_array(array, len(data))


def npz_to_arrays(npz_bytes: Any) -> dict[str, Any]:
    """
    Return the arrays of a client's NPZ file by their names.

    Raises `InvalidBody`: the file or an array is broken, or too large once it is unpacked.
    """
    data = bytes(npz_bytes)
    if data.count(_DIRECTORY_ENTRY) > _MAX_MEMBERS:
        raise InvalidBody(f"The npz file has too many arrays; expected at most {_MAX_MEMBERS}.")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            contents = {name: file.read(member) for name, member in _members(file, len(data)).items()}
    except InvalidBody:
        raise
    except _BROKEN_ZIP as error:
        raise InvalidBody(f"The npz file cannot be read: {error}.") from error
    return {name: npy_to_numpy(content) for name, content in contents.items()}


def npz_to_sparse(npz_bytes: Any) -> Any:
    """
    Return the sparse matrix of a client's NPZ file.

    Raises `InvalidBody`: see `npz_to_arrays`; or the arrays do not describe a matrix.
    """
    import scipy.sparse

    npz_to_arrays(npz_bytes)
    try:
        matrix = scipy.sparse.load_npz(io.BytesIO(npz_bytes))
        if hasattr(matrix, "check_format"):  # scipy's native code does not check indices when it uses them
            matrix.check_format(full_check=True)
    except Exception as error:  # scipy raises what the arrays happen to break
        raise InvalidBody(f"The sparse matrix cannot be read: {error}.") from error
    return matrix


def checked_array(array: Any, num_bytes: int) -> Any:
    """
    Return an array whose shape fits the bytes that it came in; elements without bytes fill the memory only later.

    Raises `InvalidBody`: there are more elements than bytes.
    """
    num_elements = math.prod(max(length, 1) for length in array.shape)
    if num_elements > max(num_bytes, _FREE_ELEMENTS) or _is_empty(array.dtype):
        raise InvalidBody(
            f"The array has {num_elements} elements of {array.dtype}; {num_bytes} bytes do not hold them."
        )
    return array


def array_to_json(array_like: Any) -> str:
    return json.dumps(array_like, default=_as_list)


def json_to_numpy(string_like: Any, dtype: Any = None) -> Any:
    import numpy as np

    return np.array(json.loads(string_like), dtype=dtype)


def _members(file: zipfile.ZipFile, num_bytes: int) -> dict[str, zipfile.ZipInfo]:
    members = {member.filename.removesuffix(".npy"): member for member in file.infolist()}
    if any(member.compress_type not in _METHODS for member in members.values()):
        raise InvalidBody("The npz file is compressed by an unknown method; expected deflate. Save it again.")
    if sum(member.file_size for member in members.values()) > max(_MAX_NPZ_BYTES, num_bytes):
        raise InvalidBody(f"The npz file is too large; expected at most {_MAX_NPZ_BYTES} bytes unpacked.")
    return members


def _check_header(data: bytes) -> None:
    """
    Refuse what is no NPY file, and a header that is too long, before numpy reads it.

    Raises `InvalidBody`: see above.
    """
    if not data.startswith(_NPY):
        if data.startswith(_ZIP):
            raise InvalidBody("The body is a zip file; expected an array in the format NPY. Send np.save's output.")
        raise _pickled()
    size = 2 if data[6:7] == b"\x01" else 4
    length = int.from_bytes(data[8 : 8 + size], "little")
    if length > _MAX_HEADER_BYTES:
        raise InvalidBody(f"The array's header has {length} bytes; expected at most {_MAX_HEADER_BYTES}.")


def _pickled() -> InvalidBody:
    return InvalidBody(
        "The body is not an array of numbers or text in the format NPY; expected one. Pickles and arrays of objects "
        f"run code: only {PICKLES_VARIABLE}=true, set by the endpoint's owner, accepts them."
    )


def _is_empty(dtype: Any) -> bool:
    """Return whether elements, or fields of them, take no bytes: the file's length then limits no shape."""
    inner = [field[0] for field in (dtype.fields or {}).values()] + ([dtype.base] if dtype.subdtype else [])
    return dtype.itemsize == 0 or any(map(_is_empty, inner))


def _as_list(value: Any) -> Any:
    """Return the numbers of an array of numpy or torch."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
