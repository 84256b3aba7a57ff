"""Limits on the number and time of requests that wait for a replica, as real clients see them on a real platform."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import openai
import pytest
from botocore.exceptions import ClientError

from tests import plain_http
from tests.waiting import WAIT_S

from .component_scene import Scene, dumb_up
from .running import until

NAME = "sleepy"
HOST = "bedroom"
HOLD_S = 10.0


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A component at zero whose copy is never healthy, and two requests that may wait for it."""
    folder = tmp_path_factory.mktemp("limits") / "data"
    running = dumb_up(folder, "--hold-timeout-s", f"{HOLD_S:g}", "--max-held", "2")
    made = Scene(running)
    running.clients.append(openai_client(running.url, running.key.secret))
    made.model(NAME, PING_AFTER_S="3600")
    made.host(HOST)
    made.create(NAME, HOST, NAME, copies=0)
    made.until_up(NAME, 0)
    yield made
    assert running.stop() == 0, running.log()


def whole(scene: Scene) -> Any:
    return scene.ask(NAME, HOST)


def stream(scene: Scene) -> Any:
    return scene.stream(NAME, HOST)


@cache
def openai_client(url: str, key: str) -> openai.OpenAI:
    """One client for all tests: to make one takes a second on a busy machine, while two requests wait `HOLD_S`."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=WAIT_S)


def chat(scene: Scene) -> Any:
    return openai_client(scene.running.url, scene.running.key.secret).chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "hi"}]
    )


def chat_stream(scene: Scene) -> Any:
    return openai_client(scene.running.url, scene.running.key.secret).chat.completions.create(
        model=NAME, stream=True, messages=[{"role": "user", "content": "hi"}]
    )


WAYS: list[Callable[[Scene], Any]] = [whole, stream, chat, chat_stream]


def refusal(way: Callable[[Scene], Any], scene: Scene) -> tuple[int, str, str, str | None]:
    """Status, kind and message of the error that a client raises, and when it shall come again."""
    try:
        way(scene)
    except ClientError as error:
        metadata = error.response["ResponseMetadata"]
        found = error.response["Error"]
        return metadata["HTTPStatusCode"], found["Code"], found["Message"], metadata["HTTPHeaders"].get("retry-after")
    except openai.APIStatusError as error:
        body: Any = error.body
        return error.status_code, type(error).__name__, body["message"], error.response.headers.get("retry-after")
    raise AssertionError("it was answered")


def num_held(scene: Scene) -> float:
    running = scene.running
    text = plain_http.get(f"{running.url}/metrics", headers=running.bearer, trust_env=False, timeout=WAIT_S).text
    return next(
        float(line.split()[1]) for line in text.splitlines() if line.startswith("headrace_gateway_requests_held ")
    )


def test_requests_over_the_hold_limits_are_told_to_retry(scene: Scene) -> None:
    with ThreadPoolExecutor(2) as pool:
        for waiting in (WAYS[:2], WAYS[2:]):
            held = [pool.submit(refusal, way, scene) for way in waiting]
            until(lambda: num_held(scene) == 2, "two wait")
            full = [refusal(way, scene) for way in WAYS]
            assert [(status, kind, again) for status, kind, _, again in full] == [
                (429, "ThrottlingException", "1"),
                (429, "ThrottlingException", "1"),
                (429, "RateLimitError", "1"),
                (429, "RateLimitError", "1"),
            ]
            assert all("as many requests as may wait" in text for _, _, text, _ in full)
            kinds = {"ServiceUnavailable"} if waiting == WAYS[:2] else {"InternalServerError"}
            late = [future.result(WAIT_S) for future in held]
            assert {(status, kind, again) for status, kind, _, again in late} == {(503, kinds.pop(), "1")}
            assert all(f"had no copy that could answer for {HOLD_S:g} s" in text for _, _, text, _ in late)
    assert num_held(scene) == 0


def test_hold_errors_are_exceptions_of_boto3(scene: Scene) -> None:
    with pytest.raises(scene.runtime.exceptions.ServiceUnavailable):
        scene.runtime.invoke_endpoint(EndpointName=HOST, InferenceComponentName=NAME, Body=json.dumps({}))


def test_held_requests_count_as_no_capacity_in_cloudwatch(scene: Scene) -> None:
    cloudwatch = scene.running.client("cloudwatch")

    def num_failures() -> float:
        found = cloudwatch.get_metric_data(
            StartTime=0,
            EndTime=4_000_000_000,
            MetricDataQueries=[
                {
                    "Id": "failures",
                    "MetricStat": {
                        "Metric": {
                            "Namespace": "AWS/SageMaker",
                            "MetricName": "NoCapacityInvocationFailures",
                            "Dimensions": [{"Name": "InferenceComponentName", "Value": NAME}],
                        },
                        "Period": 86_400,
                        "Stat": "Sum",
                    },
                }
            ],
        )
        return float(sum(found["MetricDataResults"][0]["Values"]))

    before = num_failures()
    assert refusal(whole, scene)[0] == 503
    until(lambda: num_failures() == before + 1, "it is counted")
