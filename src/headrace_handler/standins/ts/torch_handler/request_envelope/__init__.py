"""Envelopes, which unpack the requests of a format for a handler and pack its results."""

import abc
from base64 import b64decode
from collections.abc import Callable
from json import dumps, loads  # the envelope `json` takes the name of the module
from typing import Any, Final

from headrace_handler.submodules import add_submodules

from ...context import Context


class BaseEnvelope(abc.ABC):
    """A function around a handler's entry point."""

    def __init__(self, handle_fn: Callable[[Any, Context], Any]) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None

    def handle(self, data: Any, context: Context) -> Any:
        """Call the handler with the parsed requests, and format its results."""
        self.context = context
        results = self._handle_fn(self.parse_input(data) if data else data, context)
        return self.format_output(results) if results else results

    @abc.abstractmethod
    def parse_input(self, data: list[dict[str, Any]]) -> Any: ...

    @abc.abstractmethod
    def format_output(self, data: Any) -> list[Any]: ...


def content_of(row: dict[str, Any]) -> Any:
    """Return the field `data` of a request, or its body."""
    return row.get("data") or row.get("body")


class BodyEnvelope(BaseEnvelope):
    def parse_input(self, data: list[dict[str, Any]]) -> list[Any]:
        return [content_of(row) for row in data]

    def format_output(self, data: list[Any]) -> list[Any]:
        return data


class JSONEnvelope(BaseEnvelope):
    """Joins the instances of all requests to one batch, with `{"b64": ...}` decoded."""

    _lengths: list[int]

    def parse_input(self, data: list[dict[str, Any]]) -> list[Any]:
        batches = [[_decoded(instance) for instance in _instances(row)] for row in data]
        self._lengths = [len(batch) for batch in batches]
        return [instance for batch in batches for instance in batch]

    def format_output(self, data: list[Any]) -> list[str]:
        results = iter(data)
        return [
            dumps({"predictions": [result for _, result in zip(range(length), results)]})  # noqa: B905
            for length in self._lengths
        ]


def _instances(row: dict[str, Any]) -> list[Any]:
    content = content_of(row) or row
    if isinstance(content, bytes | bytearray):
        content = loads(content)
    instances: list[Any] = content["instances"]
    return instances


def _decoded(instance: Any) -> Any:
    if not isinstance(instance, dict):
        return instance
    if list(instance) == ["b64"]:
        return b64decode(instance["b64"])
    return {
        name: b64decode(value["b64"]) if isinstance(value, dict) and list(value) == ["b64"] else value
        for name, value in instance.items()
    }


class KServeEnvelope(BaseEnvelope):
    """Passes on the `instances` of a request, and returns `predictions` or `explanations`."""

    def parse_input(self, data: list[dict[str, Any]]) -> Any:
        content = content_of(data[0])
        if isinstance(content, bytes | bytearray):
            content = loads(content)
        return content.get("instances")

    def format_output(self, data: Any) -> list[Any]:
        explains = self.context.get_request_header(0, "explain") == "True"
        return [{"explanations" if explains else "predictions": data}]


_DATATYPES: Final = {
    "bool": "BOOL",
    **{f"{kind}{bits}": f"{kind.upper()}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}


class KServev2Envelope(BaseEnvelope):
    """Passes on the `inputs` of a request with their data in shape, and returns one output for each input."""

    _names: list[str]
    _request_id: str | None

    def parse_input(self, data: list[dict[str, Any]]) -> list[Any]:
        import numpy as np

        content = content_of(data[0])
        if isinstance(content, bytes | bytearray):
            content = loads(content)
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


add_submodules(
    __name__,
    {
        "base": "BaseEnvelope content_of",
        "body": "BodyEnvelope",
        "json": "JSONEnvelope",
        "kserve": "KServeEnvelope",
        "kservev2": "KServev2Envelope",
    },
)
