"""Lines of a worker's log for people: JSON events as `headrace serve` shows them on a terminal. Pure."""

import json
from datetime import datetime
from typing import Any

from headrace.core.telemetry import ConsoleRenderer, escape_control_characters
from headrace.tools.cli.terminal import printable


class LogLines:
    """
    Formats the lines of a log.

    Args:
        is_colored: whether to use colours.
        has_time: whether events show their own time.
    """

    def __init__(self, *, is_colored: bool, has_time: bool) -> None:
        self._render = ConsoleRenderer(is_colored=is_colored)
        self._has_time = has_time

    def format(self, message: str) -> str:
        """Return an event as `20:29:20 [info] server.ready`, any other line without control characters."""
        event = _event_of(message)
        if event is None:
            return printable(message)
        when = event.pop("timestamp", None)
        if self._has_time and when is not None:
            event["timestamp"] = _local_time(str(when))
        event = escape_control_characters(None, "", event)
        if "exception" in event:
            event["exception"] = printable(str(event["exception"]))
        return self._render(None, "", event)


def _event_of(message: str) -> dict[str, Any] | None:
    """Return the event in a line of Headrace's JSON log; None for the output of another program."""
    if not message.startswith("{"):
        return None
    try:
        value = json.loads(message)
    except ValueError:
        return None
    is_event = isinstance(value, dict) and {"event", "level", "timestamp"} <= value.keys()
    return value if is_event else None


def _local_time(timestamp: str) -> str:
    try:
        return f"{datetime.fromisoformat(timestamp).astimezone():%H:%M:%S}"
    except ValueError:
        return timestamp
