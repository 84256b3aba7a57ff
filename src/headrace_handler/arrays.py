"""Arrays in the formats that the stand-ins of SageMaker's toolkits share: NPY and JSON."""

import io
import json
from typing import Any


def array_to_npy(array_like: Any) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array_like)
    return buffer.getvalue()


def npy_to_numpy(npy_array: Any) -> Any:
    import numpy as np

    # As the original: the endpoint's owner decides whom to trust with a pickle.
    return np.load(io.BytesIO(npy_array), allow_pickle=True)


def array_to_json(array_like: Any) -> str:
    return json.dumps(array_like, default=_as_list)


def json_to_numpy(string_like: Any, dtype: Any = None) -> Any:
    import numpy as np

    return np.array(json.loads(string_like), dtype=dtype)


def _as_list(value: Any) -> Any:
    """Return the numbers of an array of numpy or torch."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
