"""Failures under load stay local: no request hangs, and the endpoint recovers."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.waiting import WAIT_S

from .endpoints import PROMPT, answered, delete_endpoint, make_endpoint, workers
from .running import IMAGE, Running, until

pytestmark = pytest.mark.model


class Load:
    """Threads that ask an endpoint again and again."""

    def __init__(self, running: Running, name: str, num_threads: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._name = name
        self._is_over = threading.Event()
        self._client = running.client("sagemaker-runtime", max_pool_connections=num_threads)
        self._threads = [threading.Thread(target=self._ask) for _ in range(num_threads)]

    def _ask(self) -> None:
        while not self._is_over.is_set():
            self._count(json.dumps({**PROMPT, "stream": False}))

    def _count(self, body: str) -> None:
        try:
            response = self._client.invoke_endpoint(EndpointName=self._name, Body=body, ContentType="application/json")
            with response["Body"] as stream:
                stream.read()
            self.outcomes["answered"] += 1
        except ClientError as error:
            self.outcomes[f"{error.response['ResponseMetadata']['HTTPStatusCode']}"] += 1

    @property
    def num_answered(self) -> int:
        return self.outcomes["answered"]

    def more(self, number: int) -> None:
        """Wait for so many more answers."""
        wanted = self.num_answered + number
        until(lambda: self.num_answered >= wanted, f"{number} more answers, {self.outcomes}")

    @contextmanager
    def running(self) -> Iterator["Load"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            for thread in self._threads:
                thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in self._threads), "a request hangs"


def described(platform: Running, name: str) -> Any:
    return platform.client("sagemaker").describe_endpoint(EndpointName=name)


def test_a_worker_that_is_killed_under_load_is_replaced(platform: Running, smollm2_path: Path) -> None:
    container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}}
    make_endpoint(platform, "killed", container, InitialInstanceCount=2)
    platform.until_in_service("killed")
    before = {name: pid for name, pid in workers(platform).items() if name.startswith("killed-")}
    assert len(before) == 2
    with Load(platform, "killed", 6).running() as load:
        load.more(10)
        os.kill(next(iter(before.values())), signal.SIGKILL)
        load.more(10)
        until(
            lambda: (
                described(platform, "killed")["ProductionVariants"][0]["CurrentInstanceCount"] == 2
                and {name for name in workers(platform) if name.startswith("killed-")} - set(before)
            ),
            "a replacement serves",
        )
        load.more(10)
    assert set(load.outcomes) <= {"answered", "429"}, load.outcomes
    delete_endpoint(platform, "killed")


def test_an_update_to_a_broken_model_rolls_back_without_a_failed_request(platform: Running, smollm2_path: Path) -> None:
    client = platform.client("sagemaker")
    make_endpoint(platform, "updated", {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
    platform.until_in_service("updated")
    answer = answered(platform, "updated")
    broken = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": "/no/such/model.gguf"}}
    client.create_model(
        ModelName="broken-model", PrimaryContainer=broken, ExecutionRoleArn="arn:aws:iam::000000000000:role/r"
    )
    variant = {"VariantName": "AllTraffic", "ModelName": "broken-model", "InitialInstanceCount": 1}
    client.create_endpoint_config(
        EndpointConfigName="broken-config", ProductionVariants=[{**variant, "InstanceType": "ml.m5.large"}]
    )
    with Load(platform, "updated", 2).running() as load:
        client.update_endpoint(EndpointName="updated", EndpointConfigName="broken-config")
        assert described(platform, "updated")["EndpointStatus"] == "Updating"
        until(lambda: described(platform, "updated")["EndpointStatus"] == "InService", "rolled back")
        load.more(4)
    assert set(load.outcomes) == {"answered"}, load.outcomes
    after = described(platform, "updated")
    assert after["EndpointConfigName"] == "updated"
    assert answered(platform, "updated") == answer
    delete_endpoint(platform, "updated")
    client.delete_endpoint_config(EndpointConfigName="broken-config")
    client.delete_model(ModelName="broken-model")
