"""`headrace logs`: print the logs of an endpoint's workers through the CloudWatch Logs API."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import click

from headrace.tools.cli.components import components_of
from headrace.tools.cli.group import Examples, UserFailed
from headrace.tools.cli.log_lines import LogLines
from headrace.tools.cli.platform_client import Platform, error_of, find_platform, platform_option, translate_errors
from headrace.tools.cli.terminal import printable

GROUPS = ("/aws/sagemaker/Endpoints/", "/aws/sagemaker/InferenceComponents/")
"""Prefixes of the log groups of endpoints and of inference components."""
_POLL_S = 0.5


@click.command(
    cls=Examples, examples="headrace logs smollm2\nheadrace logs smollm2 -f\nheadrace logs smollm2 --tail 20"
)
@click.argument("name")
@platform_option
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Print only the last N lines.")
@click.option("--times", is_flag=True, help="Prefix each line with its time and worker.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object with its time and worker.")
def logs(*, name: str, url: str | None, follow: bool, tail: int | None, times: bool, as_json: bool) -> None:
    """
    Print the logs of all workers of the endpoint or inference component NAME, ordered by time.

    On a terminal events are shown as `headrace serve` shows them; a file or pipe gets the lines as the workers wrote
    them.
    """
    platform = find_platform(url)
    with translate_errors():
        reader = LogTail(platform, name)
        events = list(reader.read())
        if tail is not None:
            events = events[len(events) - min(tail, len(events)) :]
        show = _show_json if as_json else partial(_show, formatted=_format_of(times=times), times=times)
        show(events)
        while follow:
            time.sleep(_POLL_S)
            show(reader.read())


class LogTail:
    """Reads the events of a log group, each once."""

    def __init__(self, platform: Platform, name: str) -> None:
        self._platform = platform
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
            pages = self._platform.logs.get_paginator("filter_log_events").paginate(
                logGroupName=group, startTime=self._start_ms
            )
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
        names = [component["InferenceComponentName"] for component in components_of(self._platform, self._name)]
        if names:
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


def _format_of(*, times: bool) -> Callable[[str], str]:
    """Return the formatter of messages: readable on a terminal, else as the worker wrote them."""
    if not sys.stdout.isatty():
        return printable
    return LogLines(is_colored="NO_COLOR" not in os.environ, has_time=not times).format


def _show(events: Iterable[Mapping[str, Any]], *, formatted: Callable[[str], str], times: bool) -> None:
    for event in events:
        prefix = ""
        if times:
            when = datetime.fromtimestamp(event["timestamp"] / 1000).astimezone()
            prefix = f"{when:%H:%M:%S} {event['logStreamName']} "
        click.echo(prefix + formatted(event["message"]))
