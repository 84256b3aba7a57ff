"""The envelope `kservev2`: the V2 protocol of KServe, one request at a time."""

import json
from typing import Any, Final

from .base import BaseEnvelope, content_of

_DATATYPES: Final = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}


class KServev2Envelope(BaseEnvelope):
    """Passes on the `inputs` of a request with their data in shape, and returns one output for each input."""

    _names: list[str]
    _request_id: str | None

    def parse_input(self, data: list[dict[str, Any]]) -> list[Any]:
        import numpy as np

        content = content_of(data[0])
        if isinstance(content, bytes | bytearray):
            content = json.loads(content)
        inputs: list[Any] = content["inputs"]
        for tensor in inputs:
            if tensor["datatype"] == "BYTES":
                tensor["data"] = tensor["data"][0]
            else:
                tensor["data"] = np.array(tensor["data"]).reshape(tensor["shape"]).tolist()
        self._names = [tensor["name"] for tensor in inputs]
        self._request_id = (content.get("id") or "").strip() or None
        return inputs

    def format_output(self, data: list[Any]) -> list[Any]:
        model = self.context.manifest.get("model", {})
        return [
            {
                "id": self._request_id or self.context.get_request_id(0),
                "model_name": model.get("modelName"),
                "model_version": model.get("modelVersion"),
                "outputs": [_tensor(*pair) for pair in zip(self._names, data, strict=False)],
            }
        ]


def _tensor(name: str, result: Any) -> dict[str, Any]:
    import numpy as np

    values = np.array(result).flatten()
    return {
        "name": name,
        "datatype": _DATATYPES.get(values.dtype.name, "BYTES"),
        "data": values.tolist(),
        "shape": list(values.shape),
    }
