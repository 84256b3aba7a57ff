"""Stand-in for the package of SageMaker's XGBoost image: training data and request bodies as `xgboost.DMatrix`."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sagemaker_containers import _errors

from headrace_handler.contracts.sagemaker import recordio
from headrace_handler.submodules import add_submodules

# data_utils: training data, which scripts that train and serve import at the top

CSV = "csv"
LIBSVM = "libsvm"
PARQUET = "parquet"
RECORDIO_PROTOBUF = "recordio-protobuf"

_NAMES = {
    CSV: CSV,
    "text/csv": CSV,
    LIBSVM: LIBSVM,
    "text/libsvm": LIBSVM,
    "text/x-libsvm": LIBSVM,
    PARQUET: PARQUET,
    "application/x-parquet": PARQUET,
    RECORDIO_PROTOBUF: RECORDIO_PROTOBUF,
    "application/x-recordio-protobuf": RECORDIO_PROTOBUF,
}


def get_content_type(content_type_cfg_val: str | None) -> str:
    """
    Return the short name of a MIME type; without one `libsvm`.

    Raises `ValueError`: the type is none of the image's, or names more than one label column.
    """
    if content_type_cfg_val is None:
        return LIBSVM
    media_type, *parameters = (part.strip() for part in content_type_cfg_val.lower().split(";"))
    if media_type not in _NAMES:
        accepted = ", ".join(sorted(_NAMES))
        raise ValueError(f"{content_type_cfg_val} is not an accepted ContentType: {accepted}.")
    name = _NAMES[media_type]
    if name == CSV and any(part.startswith("label_size=") and part != "label_size=1" for part in parameters):
        raise ValueError(
            f"{content_type_cfg_val} is not an accepted csv ContentType. "
            "Optional parameter label_size must be equal to 1"
        )
    return name


def get_dmatrix(data_path: Any, content_type: str, csv_weights: int = 0, is_pipe: bool = False) -> Any:
    """
    Return features and labels of the files of a folder; the first column of csv and parquet is the label.

    Raises `ValueError`: pipe mode, or data without labels.
    """
    import xgboost

    if is_pipe:
        raise ValueError("Pipe mode is not supported. Set input_mode='File'.")
    files = _data_files(Path(data_path))
    if not files:
        return None
    name = get_content_type(content_type)
    if name == RECORDIO_PROTOBUF:
        matrix = recordio_protobuf_to_dmatrix(b"".join(file.read_bytes() for file in files))
    elif name == LIBSVM:
        matrix = xgboost.DMatrix(f"{data_path}?format=libsvm")
    else:
        rows = _read_table(files, name)
        first = 2 if csv_weights == 1 else 1
        weights = rows[:, 1] if csv_weights == 1 else None
        matrix = xgboost.DMatrix(rows[:, first:], label=rows[:, 0], weight=weights)
    if matrix.get_label().size == 0:
        raise ValueError("Got input data without labels. Please check the input data set.")
    return matrix


def _data_files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return [file for file in files if not file.name.startswith((".", "_"))]


def _read_table(files: list[Path], name: str) -> Any:
    import numpy as np

    if name == PARQUET:
        import pandas as pd

        return np.vstack([pd.read_parquet(file).to_numpy() for file in files])
    return np.vstack([np.genfromtxt(file, delimiter=",", ndmin=2) for file in files])


# encoder


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
    is_sparse = any(row.keys is not None for row in rows)
    matrix = _stack_sparse(rows) if is_sparse else np.vstack([row.values for row in rows])  # noqa: PD011 - not of pandas
    return xgboost.DMatrix(matrix, label=np.concatenate(labels) if labels else None)


def _stack_sparse(rows: list[recordio.Tensor]) -> Any:
    import numpy as np
    import scipy.sparse

    keys = [row.keys if row.keys is not None else list(range(len(row.values))) for row in rows]
    num_columns = max([row.num_columns or 0 for row in rows] + [max(columns, default=0) + 1 for columns in keys])
    starts = np.cumsum([0] + [len(columns) for columns in keys])
    values = np.concatenate([row.values for row in rows])  # noqa: PD011 - not of pandas
    return scipy.sparse.csr_matrix((values, np.concatenate(keys).astype(int), starts), shape=(len(rows), num_columns))


_dmatrix_decoders_map: dict[str, Callable[[Any], Any]] = {
    "text/csv": csv_to_dmatrix,
    "text/libsvm": libsvm_to_dmatrix,
    "text/x-libsvm": libsvm_to_dmatrix,
    "application/x-recordio-protobuf": recordio_protobuf_to_dmatrix,
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


add_submodules(
    __name__,
    {
        "data_utils": "CSV LIBSVM PARQUET RECORDIO_PROTOBUF get_content_type get_dmatrix",
        "encoder": "csv_to_dmatrix libsvm_to_dmatrix recordio_protobuf_to_dmatrix json_to_jsonlines decode "
        "_dmatrix_decoders_map",
    },
)
