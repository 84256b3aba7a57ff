"""The base class of envelopes."""

import abc
from collections.abc import Callable
from typing import Any

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
