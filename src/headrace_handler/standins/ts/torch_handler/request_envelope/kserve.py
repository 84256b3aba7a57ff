"""The envelope `kserve`: the V1 protocol of KServe, one request at a time."""

import json
from typing import Any

from .base import BaseEnvelope, content_of


class KServeEnvelope(BaseEnvelope):
    """Passes on the `instances` of a request, and returns `predictions` or `explanations`."""

    def parse_input(self, data: list[dict[str, Any]]) -> Any:
        content = content_of(data[0])
        if isinstance(content, bytes | bytearray):
            content = json.loads(content)
        return content.get("instances")

    def format_output(self, data: Any) -> list[Any]:
        explains = self.context.get_request_header(0, "explain") == "True"
        return [{"explanations" if explains else "predictions": data}]
