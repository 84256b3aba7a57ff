"""Logs outlive their workers, on a real platform with the real small model."""

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .running import Running, until, up
from .test_wake import NAME, invoke, make_variant, to_zero

pytestmark = pytest.mark.model

GROUP = f"/aws/sagemaker/Endpoints/{NAME}"


def lines(running: Running) -> list[tuple[str, str]]:
    """Stream and text of all events."""
    pages = running.client("logs").get_paginator("filter_log_events").paginate(logGroupName=GROUP)
    return [(event["logStreamName"], event["message"]) for page in pages for event in page["events"]]


def streams(running: Running) -> list[str]:
    found: list[dict[str, Any]] = running.client("logs").describe_log_streams(logGroupName=GROUP)["logStreams"]
    assert all(entry["storedBytes"] and entry["lastEventTimestamp"] for entry in found)
    return [entry["logStreamName"] for entry in found]


def has_ended(running: Running) -> bool:
    """Return whether the worker's folder was removed."""
    return not list((running.folder / "workers").glob("*"))


def test_logs_outlive_scale_in_the_endpoint_and_the_platform(tmp_path: Path, smollm2_path: Path) -> None:
    running = up(tmp_path / "data")
    try:
        make_variant(running, smollm2_path)
        invoke(running)
        (stream,) = streams(running)
        to_zero(running)
        until(lambda: has_ended(running), "the worker has ended")
        before = lines(running)
        assert {name for name, _ in before} == {stream}
        assert "server." in str(before)
        invoke(running)  # wakes another one
        assert len(streams(running)) == 2
        assert set(before) <= set(lines(running))
        running.client("sagemaker").delete_endpoint(EndpointName=NAME)
        until(lambda: has_ended(running), "all workers have ended")
        after = lines(running)
        assert set(before) < set(after)
        running.close()
        running.kill()
        running = up(tmp_path / "data")
        assert lines(running) == after
        said = running.headrace("logs", NAME, "--url", running.url)
        assert said.stdout.splitlines() == [text for _, text in after], said.stderr
        assert running.stop() == 0, running.log()
        running = up(tmp_path / "data", "--logs-mib", "0")
        with pytest.raises(ClientError, match="log group does not exist"):
            lines(running)
        assert list((running.folder / "ended-logs").iterdir()) == []
    finally:
        assert running.stop() == 0, running.log()
