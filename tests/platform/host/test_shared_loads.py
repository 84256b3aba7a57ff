"""Two platforms on one PostgreSQL: each routes, and the leader scales, by the requests of both."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from .component_scene import dumb_up
from .endpoints import make_endpoint
from .running import Running, until
from .test_two_platforms import leads

NAME = "pair"
HELD_S = 600.0
NUM_IN_A_ROW = 20
"""Requests that all go to one of two idle workers by chance: one time in a million."""


def answered_by(platform: Running) -> int:
    """The process id of the worker that answered a request."""
    answer = platform.client("sagemaker-runtime").invoke_endpoint(EndpointName=NAME, Body=b"{}")
    return int(json.loads(answer["Body"].read())["pid"])


@contextmanager
def held_request(platform: Running) -> Iterator[None]:
    """A request that a worker holds until the end of the test."""
    client = platform.client("sagemaker-runtime")
    body = json.dumps({"stream": 1, "wait_s": HELD_S})
    response = client.invoke_endpoint_with_response_stream(EndpointName=NAME, Body=body)
    try:
        yield
    finally:
        response["Body"].close()


def concurrency(platform: Running) -> list[float]:
    """Mean numbers of requests in flight for each of the workers, as the leader has measured them."""
    now = datetime.now(UTC)
    found = platform.client("cloudwatch").get_metric_statistics(
        Namespace="AWS/SageMaker",
        MetricName="ConcurrentRequestsPerModel",
        Dimensions=[{"Name": "EndpointName", "Value": NAME}, {"Name": "VariantName", "Value": "AllTraffic"}],
        StartTime=now - timedelta(hours=1),
        EndTime=now + timedelta(minutes=1),
        Period=60,
        Statistics=["Maximum"],
    )
    return [point["Maximum"] for point in found["Datapoints"]]


def test_requests_through_one_platform_count_for_the_routing_and_the_metrics_of_the_other(
    tmp_path: Path, new_database: Callable[[], str]
) -> None:
    database = new_database()
    platforms = [dumb_up(tmp_path / name, "--database", database) for name in ("a", "b")]
    try:
        check(platforms)
    finally:
        for platform in platforms:
            platform.close()
        stopping = [threading.Thread(target=platform.stop) for platform in platforms]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()


def check(platforms: list[Running]) -> None:
    container: dict[str, Any] = {"Image": "dumb"}
    routing = {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}
    make_endpoint(platforms[0], NAME, container, InitialInstanceCount=2, RoutingConfig=routing)
    for platform in platforms:
        platform.until_in_service(NAME)
    until(lambda: len({answered_by(platforms[0]) for _ in range(NUM_IN_A_ROW)}) == 2, "both workers answer")
    until(lambda: leads(platforms[0]) != leads(platforms[1]), "one of them leads")
    leader, follower = sorted(platforms, key=leads, reverse=True)
    with held_request(follower):
        until(lambda: len({answered_by(leader) for _ in range(NUM_IN_A_ROW)}) == 1, "the leader avoids the busy worker")
        until(lambda: max(concurrency(leader), default=0.0) >= 0.5, "one request in flight for two workers")
    with held_request(leader):
        until(lambda: len({answered_by(follower) for _ in range(NUM_IN_A_ROW)}) == 1, "the follower avoids it")
