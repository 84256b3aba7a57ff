"""The envelope `body`."""

from typing import Any

from .base import BaseEnvelope, content_of


class BodyEnvelope(BaseEnvelope):
    """Passes on the bodies alone."""

    def parse_input(self, data: list[dict[str, Any]]) -> list[Any]:
        return [content_of(row) for row in data]

    def format_output(self, data: list[Any]) -> list[Any]:
        return data
