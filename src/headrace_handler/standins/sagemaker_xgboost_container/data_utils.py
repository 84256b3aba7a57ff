"""Training data as `DMatrix`: scripts that train and serve import this at the top."""

from pathlib import Path
from typing import Any

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

    Raises:
        ValueError: the type is none of the image's, or names more than one label column.
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

    Raises:
        ValueError: pipe mode, or data without labels.
    """
    import xgboost

    if is_pipe:
        raise ValueError("Pipe mode is not supported. Set input_mode='File'.")
    files = _data_files(Path(data_path))
    if not files:
        return None
    name = get_content_type(content_type)
    if name == RECORDIO_PROTOBUF:
        from . import encoder

        matrix = encoder.recordio_protobuf_to_dmatrix(b"".join(file.read_bytes() for file in files))
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


__all__ = ["CSV", "LIBSVM", "PARQUET", "RECORDIO_PROTOBUF", "get_content_type", "get_dmatrix"]
