"""The envelope `json`: `{"instances": [...]}` in, `{"predictions": [...]}` out, as TensorFlow Serving."""

import json
from base64 import b64decode
from typing import Any

from .base import BaseEnvelope, content_of


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
            json.dumps({"predictions": [result for _, result in zip(range(length), results)]})  # noqa: B905
            for length in self._lengths
        ]


def _instances(row: dict[str, Any]) -> list[Any]:
    content = content_of(row) or row
    if isinstance(content, bytes | bytearray):
        content = json.loads(content)
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
