"""Request bodies as `DMatrix`."""

import csv
import json
from collections.abc import Callable
from typing import Any

from sagemaker_containers import _content_types, _errors

from headrace_handler.contracts.sagemaker import recordio

_LIBSVM, _X_LIBSVM = "text/libsvm", "text/x-libsvm"
_RECORDIO = "application/x-recordio-protobuf"


def csv_to_dmatrix(input: Any, dtype: Any = None) -> Any:  # noqa: A002 - the original's name
    """Return the rows; the delimiter is guessed from the first line, and an empty cell is a missing value."""
    import numpy as np
    import xgboost

    text = bytes(input).decode() if isinstance(input, bytes | bytearray) else input
    lines = text.split("\n")
    sniffed = csv.Sniffer().sniff(lines[0][:512]).delimiter
    delimiter = "," if sniffed.isalnum() else sniffed
    cells = [["nan" if cell == "" else cell for cell in line.split(delimiter)] for line in lines]
    return xgboost.DMatrix(np.array(cells).astype(dtype))


def libsvm_to_dmatrix(string_like: Any) -> Any:
    """Return the rows without their labels, as XGBoost reads a file: indices from 0, and absent features missing."""
    import numpy as np
    import scipy.sparse
    import xgboost

    text = bytes(string_like).decode() if isinstance(string_like, bytes | bytearray) else string_like
    rows = [
        {int(index): float(value) for index, _, value in (cell.partition(":") for cell in line.split() if ":" in cell)}
        for line in text.strip().split("\n")
    ]
    if not any(rows):
        return xgboost.DMatrix(np.empty((0, 0)))
    indices = [index for row in rows for index in row]
    if min(indices) < 0:
        raise ValueError(f"The feature index {min(indices)} is negative; expected 0 or more.")
    starts = np.cumsum([0, *map(len, rows)])
    values = [value for row in rows for value in row.values()]
    matrix = scipy.sparse.csr_matrix((values, indices, starts), shape=(len(rows), max(indices) + 1))
    return xgboost.DMatrix(matrix)


def recordio_protobuf_to_dmatrix(string_like: Any) -> Any:
    import numpy as np
    import xgboost

    rows, labels = [], []
    for features, label in recordio.read_records(bytes(string_like)):
        if "values" not in features:
            continue
        rows.append(features["values"])
        if "values" in label:
            labels.append(label["values"].values)
    if not rows:
        raise ValueError("No records found in RecordIO-Protobuf data")
    matrix = (
        _stack_sparse(rows) if any(row.keys is not None for row in rows) else np.vstack([row.values for row in rows])
    )
    return xgboost.DMatrix(matrix, label=np.concatenate(labels) if labels else None)


def _stack_sparse(rows: list[recordio.Tensor]) -> Any:
    import numpy as np
    import scipy.sparse

    keys = [row.keys if row.keys is not None else list(range(len(row.values))) for row in rows]
    num_columns = max([row.num_columns or 0 for row in rows] + [max(columns, default=0) + 1 for columns in keys])
    starts = np.cumsum([0] + [len(columns) for columns in keys])
    values = np.concatenate([row.values for row in rows])
    return scipy.sparse.csr_matrix((values, np.concatenate(keys).astype(int), starts), shape=(len(rows), num_columns))


_dmatrix_decoders_map: dict[str, Callable[[Any], Any]] = {
    _content_types.CSV: csv_to_dmatrix,
    _LIBSVM: libsvm_to_dmatrix,
    _X_LIBSVM: libsvm_to_dmatrix,
    _RECORDIO: recordio_protobuf_to_dmatrix,
}


def json_to_jsonlines(json_data: Any) -> bytes:
    """Return the entries of the only list of an object, one a line."""
    lists = json_data if isinstance(json_data, dict) else json.loads(json_data)
    if len(lists) != 1:
        raise ValueError("JSON response is not compatible for conversion to jsonlines.")
    return "".join(json.dumps(entry) + "\n" for entries in lists.values() for entry in entries).encode()


def decode(obj: Any, content_type: str) -> Any:
    """Return the `DMatrix` of a body; parameters of the type do not count."""
    media_type = content_type.partition(";")[0].strip()
    if media_type not in _dmatrix_decoders_map:
        raise _errors.UnsupportedFormatError(media_type)
    return _dmatrix_decoders_map[media_type](obj)
