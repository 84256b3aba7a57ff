"""`headrace logs`: print the logs of an endpoint's workers through the CloudWatch Logs API."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import click

from headrace.core.client_text import printable
from headrace.core.telemetry import ConsoleRenderer, escape_control_characters
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.group import AT_LEAST_0, UserFailed
from headrace.tools.cli.platform_client import Platform, error_of, opened_platform, platform_option

GROUPS = ("/aws/sagemaker/Endpoints/", "/aws/sagemaker/InferenceComponents/")
"""Prefixes of the log groups of endpoints and of inference components."""
_POLL_S = 0.5


@click.command(
    cls=HelpfulCommand, examples="headrace logs smollm2\nheadrace logs smollm2 -f\nheadrace logs smollm2 --tail 20"
)
@click.argument("name")
@platform_option
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option("--tail", type=AT_LEAST_0, metavar="N", help="Print only the last N lines.")
@click.option("--times", is_flag=True, help="Prefix each line with its time and worker.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object with its time and worker.")
def logs(*, name: str, url: str | None, follow: bool, tail: int | None, times: bool, as_json: bool) -> None:
    """
    Print the logs of all workers of the endpoint or inference component NAME, ordered by time.

    On a terminal events are shown as `headrace serve` shows them; a file or pipe gets the lines as the workers wrote
    them.
    """
    with opened_platform(url) as platform:
        reader = LogTail(platform, name)
        events = list(reader.read())
        if tail is not None:
            events = events[len(events) - min(tail, len(events)) :]
        formatted: Callable[[str], str] = printable
        if sys.stdout.isatty():
            formatted = LogLines(is_colored="NO_COLOR" not in os.environ, has_time=not times).format
        show = _show_json if as_json else partial(_show, formatted=formatted, times=times)
        show(events)
        while follow:
            time.sleep(_POLL_S)
            show(reader.read())


class LogTail:
    """Reads the events of a log group, each once."""

    def __init__(self, platform: Platform, name: str) -> None:
        self._platform = platform
        self._client = platform.client("logs")
        self._name = name
        self._groups = [group + name for group in GROUPS]
        """Candidates for the log group; one of them once it has been found."""
        self._start_ms = 0
        self._seen: set[str] = set()
        """Ids of the events of the last millisecond read: more events of that millisecond may follow."""

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield new events. Raises `UserFailed` if there is no log group of that name."""
        from botocore.exceptions import ClientError

        for group in tuple(self._groups):
            paginator = self._client.get_paginator("filter_log_events")
            pages = paginator.paginate(logGroupName=group, startTime=self._start_ms)
            try:
                for page in pages:
                    self._groups = [group]
                    yield from self._new(page["events"])
            except ClientError as error:
                if error_of(error)[0] != "ResourceNotFoundException":
                    raise
                continue
            return
        raise UserFailed(self._why_not())

    def _why_not(self) -> str:
        """Return the reason why there is no log: an endpoint that hosts components has no log of its own."""
        if names := self._platform.component_names(self._name):
            return f"The endpoint {self._name} hosts inference components with separate logs: {', '.join(names)}."
        return (
            f"There is no log of an endpoint or inference component called {self._name}. `headrace ls` lists them. "
            "There is no log if no worker has run, or the last one ended more than seven days ago."
        )

    def _new(self, events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for event in events:
            if event["eventId"] in self._seen:
                continue
            if event["timestamp"] > self._start_ms:
                self._start_ms = event["timestamp"]
                self._seen.clear()
            self._seen.add(event["eventId"])
            yield event


def _show_json(events: Iterable[Mapping[str, Any]]) -> None:
    for event in events:
        line = {"time_ms": event["timestamp"], "worker": event["logStreamName"], "message": event["message"]}
        click.echo(json.dumps(line, ensure_ascii=False))


def _show(events: Iterable[Mapping[str, Any]], *, formatted: Callable[[str], str], times: bool) -> None:
    for event in events:
        prefix = ""
        if times:
            when = datetime.fromtimestamp(event["timestamp"] / 1000).astimezone()
            prefix = f"{when:%H:%M:%S} {event['logStreamName']} "
        click.echo(prefix + formatted(event["message"]))


class LogLines:
    """Formats the lines of a log: JSON events as `headrace serve` shows them, with their own time if `has_time`."""

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
            event["timestamp"] = str(when)
            with suppress(ValueError):  # the time of another program is shown as it is
                event["timestamp"] = f"{datetime.fromisoformat(str(when)).astimezone():%H:%M:%S}"
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
