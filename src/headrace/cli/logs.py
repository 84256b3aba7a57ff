"""`headrace logs`: what the workers of an endpoint wrote, from the `logs` API."""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from headrace.cli.components import components_of
from headrace.cli.group import Examples, UserFailed
from headrace.cli.platform_client import Platform, error_of, find_platform, platform_option, told
from headrace.cli.terminal import printable

GROUPS = ("/aws/sagemaker/Endpoints/", "/aws/sagemaker/InferenceComponents/")
"""Where an endpoint's workers log, and a component's copies."""
_POLL_S = 0.5


@click.command(
    cls=Examples, examples="headrace logs smollm2\nheadrace logs smollm2 -f\nheadrace logs smollm2 --tail 20"
)
@click.argument("name")
@platform_option
@click.option("--follow", "-f", is_flag=True, help="Go on with what is written from now on; Ctrl-C ends it.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--times", is_flag=True, help="Show when each line was written, and by which worker.")
def logs(*, name: str, url: str | None, follow: bool, tail: int | None, times: bool) -> None:
    """Print the log of the endpoint or inference component NAME: all its workers, in the order of time."""
    platform = find_platform(url)
    with told():
        reader = LogTail(platform, name)
        events = list(reader.read())
        if tail is not None:
            events = events[len(events) - min(tail, len(events)) :]
        _show(events, times=times)
        while follow:
            time.sleep(_POLL_S)
            _show(reader.read(), times=times)


class LogTail:
    """Reads a group's events, each of them once."""

    def __init__(self, platform: Platform, name: str) -> None:
        self._platform = platform
        self._name = name
        self._groups = [group + name for group in GROUPS]
        """Where the log may be; one of them once it was found."""
        self._start_ms = 0
        self._seen: set[str] = set()
        """Events of the last millisecond that was read: more of the same may follow."""

    def read(self) -> Iterator[dict[str, Any]]:
        """What is new. Raises `UserFailed` if nothing of that name has ever logged."""
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
        """Why there is no log: a host of components has none of its own."""
        names = [one["InferenceComponentName"] for one in components_of(self._platform, self._name)]
        if names:
            return f"The endpoint {self._name} hosts inference components, which log apart: {', '.join(names)}."
        return (
            f"There is no log of an endpoint or inference component called {self._name}. `headrace ls` lists them; "
            "one whose workers never ran, or ended more than seven days ago, has no log."
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


def _show(events: Any, *, times: bool) -> None:
    for event in events:
        prefix = ""
        if times:
            when = datetime.fromtimestamp(event["timestamp"] / 1000).astimezone()
            prefix = f"{when:%H:%M:%S} {event['logStreamName']} "
        click.echo(prefix + printable(event["message"]))
