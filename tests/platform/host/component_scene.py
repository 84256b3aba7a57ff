"""A platform whose models are dumb servers, and what one does to inference components on it."""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from tests.waiting import WAIT_S

from .running import Running, until, up

ROLE = "arn:aws:iam::000000000000:role/any"
NEED = {"NumberOfCpuCoresRequired": 1, "MinMemoryRequiredInMb": 128}
SERVER = Path(__file__).with_name("dumb_server.py")


def dumb_up(folder: Path, *flags: str, image: str = "dumb") -> Running:
    """A platform on which an image, or all that a pattern fits, are dumb servers."""
    images = folder.parent / "images.toml"
    images.write_text(f'[images."{image}"]\ncommand = ["{sys.executable}", "-S", "-E", "{SERVER}", "{{port}}"]\n')
    return up(folder, "--images", str(images), *flags)


@dataclass
class Scene:
    """One platform and its clients."""

    running: Running

    def __post_init__(self) -> None:
        self.sagemaker = self.running.client("sagemaker")
        self.runtime = self.running.client("sagemaker-runtime", max_pool_connections=8)

    def model(self, name: str, **environment: str) -> None:
        container = {"Image": "dumb", "Environment": {"NAME": name, **environment}}
        self.sagemaker.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=ROLE)

    def host(self, name: str, instance_type: str = "ml.m5.4xlarge", **variant: Any) -> None:
        """An endpoint for components, in service."""
        production = {"VariantName": "v", "InstanceType": instance_type, "InitialInstanceCount": 1, **variant}
        self.sagemaker.create_endpoint_config(
            EndpointConfigName=name, ExecutionRoleArn=ROLE, ProductionVariants=[production]
        )
        self.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)
        until(lambda: self.endpoint(name)["EndpointStatus"] == "InService", f"{name} is in service")

    def create(
        self, name: str, endpoint: str, model: str, *, copies: int = 1, need: dict[str, Any] = NEED, **more: Any
    ) -> None:
        self.sagemaker.create_inference_component(
            InferenceComponentName=name,
            EndpointName=endpoint,
            VariantName="v",
            Specification={"ModelName": model, "ComputeResourceRequirements": need},
            RuntimeConfig={"CopyCount": copies},
            **more,
        )

    def update(self, name: str, model: str, *, batch: int = 1, wait_s: int = 0, alarm: str = "") -> None:
        size = {"Type": "COPY_COUNT", "Value": batch}
        config: dict[str, Any] = {"RollingUpdatePolicy": {"MaximumBatchSize": size, "WaitIntervalInSeconds": wait_s}}
        if alarm:
            config["AutoRollbackConfiguration"] = {"Alarms": [{"AlarmName": alarm}]}
        self.sagemaker.update_inference_component(
            InferenceComponentName=name,
            Specification={"ModelName": model, "ComputeResourceRequirements": NEED},
            DeploymentConfig=config,
        )

    def scale(self, name: str, copies: int) -> None:
        self.sagemaker.update_inference_component_runtime_config(
            InferenceComponentName=name, DesiredRuntimeConfig={"CopyCount": copies}
        )

    def delete(self, name: str) -> None:
        self.sagemaker.delete_inference_component(InferenceComponentName=name)

    def seen(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.sagemaker.describe_inference_component(InferenceComponentName=name)
        return found

    def endpoint(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.sagemaker.describe_endpoint(EndpointName=name)
        return found

    def names(self, **filters: Any) -> list[str]:
        listed = self.sagemaker.list_inference_components(**filters)["InferenceComponents"]
        return [entry["InferenceComponentName"] for entry in listed]

    def is_up(self, name: str, copies: int) -> bool:
        found = self.seen(name)
        assert found["InferenceComponentStatus"] != "Failed", found
        counts = found["RuntimeConfig"]
        is_there = counts["CurrentCopyCount"] == counts["DesiredCopyCount"] == copies
        return is_there and found["InferenceComponentStatus"] == "InService"

    def until_up(self, name: str, copies: int = 1) -> None:
        until(lambda: self.is_up(name, copies), f"{name} has {copies} copies")

    def until_gone(self, *names: str) -> None:
        until(lambda: not set(names) & set(self.names()), f"{names} are gone")

    def clear(self, endpoint: str) -> None:
        """Remove an endpoint and all that is on it."""
        for name in self.names(EndpointNameEquals=endpoint):
            with suppress(ClientError):
                self.delete(name)
        until(lambda: not self.names(EndpointNameEquals=endpoint), f"nothing is on {endpoint}")
        self.sagemaker.delete_endpoint(EndpointName=endpoint)

    def ask(self, component: str, endpoint: str, **body: Any) -> dict[str, Any]:
        response = self.runtime.invoke_endpoint(
            EndpointName=endpoint,
            InferenceComponentName=component,
            Body=json.dumps(body),
            ContentType="application/json",
        )
        with response["Body"] as stream:
            answer: dict[str, Any] = json.loads(stream.read())
        return answer

    def stream(self, component: str, endpoint: str, lines: int = 3, **body: Any) -> list[dict[str, Any]]:
        response = self.runtime.invoke_endpoint_with_response_stream(
            EndpointName=endpoint,
            InferenceComponentName=component,
            Body=json.dumps({"stream": lines, **body}),
            ContentType="application/json",
        )
        parts = b"".join(event["PayloadPart"]["Bytes"] for event in response["Body"])
        response["Body"].close()
        return [json.loads(line) for line in parts.splitlines()]

    @contextmanager
    def load(self, component: str, endpoint: str) -> Iterator["Load"]:
        """Ask again and again; at the end no request may have failed."""
        load = Load(self, component, endpoint)
        with load.running():
            yield load
        assert not load.failures, load.failures


class Load:
    """Two threads that ask a component, one of them for streams."""

    def __init__(self, scene: Scene, component: str, endpoint: str) -> None:
        self.answers: Counter[str] = Counter()
        """By the name of the model that answered."""
        self.failures: list[str] = []
        self._scene, self._component, self._endpoint = scene, component, endpoint
        self._is_over = threading.Event()

    def _ask(self, *, is_stream: bool) -> None:
        while not self._is_over.is_set():
            try:
                if is_stream:
                    lines = self._scene.stream(self._component, self._endpoint, wait_s=0.2)
                    assert [line["line"] for line in lines] == [0, 1, 2], lines
                    name = lines[0]["name"]
                else:
                    name = self._scene.ask(self._component, self._endpoint, wait_s=0.05)["name"]
            except Exception as error:  # noqa: BLE001 -- whatever it was, the test tells
                self.failures.append(repr(error))
                time.sleep(0.1)
            else:
                self.answers[name] += 1

    def more(self, number: int, name: str | None = None) -> None:
        """Wait for so many more answers, of one model or of any."""
        wanted = self._count(name) + number
        until(lambda: self._count(name) >= wanted, f"{number} more answers of {name}; {self.answers} {self.failures}")

    def _count(self, name: str | None) -> int:
        return self.answers.total() if name is None else self.answers[name]

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask, kwargs={"is_stream": kind}) for kind in (False, True)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in threads), "a request hangs"
