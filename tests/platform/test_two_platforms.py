"""Two platforms on one PostgreSQL: both serve, one leads, and the other goes on when that one is killed."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .running import IMAGE, Running, until, up
from .test_end_to_end import answered, delete_endpoint, make_endpoint

pytestmark = pytest.mark.model

NUM_STREAMS = 8


def streamed(platform: Running, name: str, num_tokens: int) -> str:
    """The text of a stream, or the error in it."""
    body = {
        "inputs": "Once upon a time",
        "parameters": {"max_new_tokens": num_tokens, "do_sample": False},
        "stream": True,
    }
    response = platform.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
        EndpointName=name, Body=json.dumps(body), ContentType="application/json"
    )
    return b"".join(event["PayloadPart"]["Bytes"] for event in response["Body"]).decode()


def test_one_platform_is_killed_under_streams_of_the_other(
    tmp_path: Path, new_database: Callable[[], str], smollm2_path: Path
) -> None:
    database = new_database()
    first = up(tmp_path / "a", "--database", database)
    second = up(tmp_path / "b", "--database", database)
    try:
        check_takeover(first, second, {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
    finally:
        for platform in (first, second):
            if platform.process.poll() is None:
                assert platform.stop() == 0, platform.log()


def leads(platform: Running) -> bool:
    """Return whether the last thing that a platform said of the lease is that it leads."""
    log = platform.log()
    return log.count('"platform.leads"') > log.count('"platform.leads_no_more"')


def check_takeover(older: Running, newer: Running, container: dict[str, Any]) -> None:
    make_endpoint(newer, "shared", container)
    older.until_in_service("shared")
    until(
        lambda: leads(older) != leads(newer), "one of them leads"
    )  # perhaps not the older: a slow one loses its lease
    first, second = (older, newer) if leads(older) else (newer, older)
    expected = streamed(second, "shared", 200)
    assert streamed(first, "shared", 200) == expected
    answers: list[str] = []
    streams = [
        threading.Thread(target=lambda: answers.append(streamed(second, "shared", 200))) for _ in range(NUM_STREAMS)
    ]
    for stream in streams:
        stream.start()
    first.kill()
    until(lambda: leads(second), "the other platform leads")
    for stream in streams:
        stream.join()
    assert answers == [expected] * NUM_STREAMS
    second.client("s3").create_bucket(Bucket="bucket")
    make_endpoint(second, "later", container)
    second.until_in_service("later", "shared")
    assert answered(second, "later")
    workers = second.client("sagemaker").describe_endpoint(EndpointName="shared")["ProductionVariants"]
    assert workers[0]["CurrentInstanceCount"] == 1
    delete_endpoint(second, "shared")
