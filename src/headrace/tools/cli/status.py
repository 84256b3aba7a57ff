"""`headrace status`: show the state of a platform, or wait until it and its endpoints are ready."""

import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.endpoints import BUSY, failure_text
from headrace.tools.cli.group import Failed, UserFailed
from headrace.tools.cli.platform_client import Platform, find_platform, platform_option, translate_errors
from headrace.tools.cli.progress import ShowStage, showing_stage
from headrace.tools.cli.tables import age, count_of, labelled

_POLL_S = 0.3
_READY = "InService"

EXAMPLES = """
headrace status
headrace status --wait                  until all endpoints are in service
headrace status --wait --timeout-s 60   exit code 1 if that takes longer
headrace status --json
"""


@click.command(cls=HelpfulCommand, examples=EXAMPLES)
@platform_option
@click.option("--wait", is_flag=True, help="Wait until the platform answers and no endpoint is starting.")
@click.option("--timeout-s", type=click.FloatRange(min=0), default=600.0, help="With --wait: seconds to wait at most.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(*, url: str | None, wait: bool, timeout_s: float, as_json: bool) -> None:
    """
    Show whether a platform is running, where, since when, and the state of its parts.

    With --wait it waits for the platform and for all its endpoints and inference components. The exit code is 1 if
    one of them has failed, or if they are not in service in time.
    """
    platform = _wait(url, timeout_s) if wait else find_platform(url)
    health = platform.health()
    machines = platform.machines()
    if as_json:
        click.echo(json.dumps({"url": platform.url, **health, **({"machines": machines} if machines else {})}))
    else:
        rows = [("url", platform.url), ("console", _console(platform, health)), *_rows(health)]
        click.echo(labelled([*rows, *([("machines", ", ".join(machines))] if machines else [])]))
    if health.get("status") != "ok":
        raise Failed(f"The platform is not ready: {health.get('reason') or health.get('status')}")


def _console(platform: Platform, health: Mapping[str, Any]) -> str:
    """Return the address of the console, with the key of the data folder if it asks for one."""
    from headrace.platform.host.folders import LocalKey, console_url

    needs_key = platform.has_credentials and health.get("asks_for_keys")
    key = LocalKey(key_id=platform.access_key, secret=platform.secret_key) if needs_key else None
    return console_url(platform.url, key)


def _rows(health: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    now = datetime.now(UTC)
    for name, value in health.items():
        if name == "uptime_s":
            yield "uptime", age(now - timedelta(seconds=value), now)
        elif name == "asks_for_keys":
            yield "keys", "required" if value else "not required"
        elif name != "service" and not isinstance(value, dict | list):
            yield name.replace("_", " "), value


def _wait(url: str | None, timeout_s: float) -> Platform:
    """Wait until the platform and all that it serves are ready; raises `Failed` if they are not in time."""
    deadline_s = time.monotonic() + timeout_s
    with showing_stage("platform") as show:
        platform = _until_it_answers(url, deadline_s, show)
        while waiting := _pending(platform):
            if time.monotonic() > deadline_s:
                raise Failed(f"Not in service after {timeout_s:g} s: {', '.join(waiting)}. The platform continues.")
            show(f"{count_of(len(waiting), 'deployment')} not in service yet: {', '.join(waiting)}")
            time.sleep(_POLL_S)
    return platform


def _until_it_answers(url: str | None, deadline_s: float, show: ShowStage) -> Platform:
    platform: Platform | None = None  # found once: a guessed address is named each time that it is found
    while True:
        try:
            platform = platform or find_platform(url)
            health = platform.health()
            if health.get("status") == "ok":
                return platform
            reason = f"The platform at {platform.url} is not ready: {health.get('reason') or health.get('status')}"
        except UserFailed:
            raise
        except Failed as error:
            reason = error.message
        if time.monotonic() > deadline_s:
            raise Failed(reason)
        show("waiting for an answer")
        time.sleep(_POLL_S)


def _pending(platform: Platform) -> list[str]:
    """Return what is not in service yet. Raises `Failed` if something has failed."""
    with translate_errors():
        found = [deployment for deployment in _deployments(platform) if deployment[1] != "Deleting"]
    failed = [deployment for deployment in found if deployment[1] not in BUSY | {_READY}]
    if failed:
        raise Failed("\n".join(failure_text(*deployment, platform.option) for deployment in failed))
    return [f"{name} ({status})" for name, status, _ in found if status in BUSY]


def _deployments(platform: Platform) -> Iterator[tuple[str, str, str]]:
    """Yield name, status and failure reason of each endpoint and inference component."""
    for endpoint in platform.listed("list_endpoints", "Endpoints"):
        name, status, reason = endpoint["EndpointName"], endpoint["EndpointStatus"], ""
        if status not in BUSY | {_READY}:  # only the description has the reason
            reason = (platform.endpoint(name) or {}).get("FailureReason", "")
        yield name, status, reason
    for component in platform.components():
        status, reason = component["InferenceComponentStatus"], component.get("FailureReason", "")
        yield component["InferenceComponentName"], status, reason
