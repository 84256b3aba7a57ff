"""The operators of a run: they change endpoints, store objects and invoke asynchronously."""

import itertools
import json
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.chaos.clients import Caller, Refused, read_body
from benchmarks.chaos.echo_server import answer_of
from benchmarks.chaos.history import RIGHT, WRONG, Activity, EndpointState, History
from benchmarks.chaos.world import IMAGE
from benchmarks.harness.platforms import ROLE, VARIANT, Target
from botocore.exceptions import BotoCoreError, ClientError

BUCKET = "chaos"
STEADY = ("steady-0", "steady-1")
"""Endpoints that get the load; they are scaled, but never to zero."""
ASYNCHRONOUS = "asynchronous"
SCALED = "scaled"
"""Its number of instances is changed by the bounds of a scalable target."""
_TARGET = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": f"endpoint/{SCALED}/variant/{VARIANT}",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}
_MAX_ENDPOINTS = 3
_SETTLE_S = 180.0


class Operator:
    """Changes endpoints, and keeps what was asked for and acknowledged in the history."""

    def __init__(
        self,
        targets: Sequence[Target],
        history: History,
        seed: int,
        *,
        steady_count: int = 2,
        is_steady_changed: bool = True,
        max_pause_s: float = 1.5,
    ) -> None:
        """The endpoints under load have `steady_count` instances; `max_pause_s` is the longest time between changes."""
        self._max_pause_s = max_pause_s
        self._steady_count = steady_count
        self._changed = STEADY if is_steady_changed else ()
        self._sagemaker = Caller("sagemaker", targets)
        self._s3 = Caller("s3", targets)
        self._runtime = Caller("sagemaker-runtime", targets)
        self._scaling = Caller("application-autoscaling", targets)
        self._callers = (self._sagemaker, self._s3, self._runtime, self._scaling)
        self._history = history
        self._history.scaled = SCALED
        self._random = random.Random(seed)
        self._num_made = 0
        self._asynchronous: list[tuple[str, str, str, str]] = []
        """Id, prompt, output and failure location of the accepted invocations."""
        self.is_over = threading.Event()

    def prepare(self) -> None:
        """Create what the load needs, and wait until it serves."""
        self._s3.call("create_bucket", Bucket=BUCKET, done="BucketAlready")
        for name in STEADY:
            self._create(name, count=self._steady_count)
        where = {"OutputConfig": {"S3OutputPath": f"s3://{BUCKET}/out", "S3FailurePath": f"s3://{BUCKET}/failed"}}
        self._create(ASYNCHRONOUS, count=1, asynchronous=where)
        self._create(SCALED, count=1)
        self.settle()
        self._bound(1)

    def change_endpoints(self) -> None:
        """Create, update, scale and delete until it is over."""
        while not self.is_over.wait(self._random.uniform(0.2, self._max_pause_s)):
            own = [name for name in self._history.asked if name.startswith("own-")]
            action = self._random.choice(
                (self._scale_any, self._update_any, self._delete_any, self._create_any, self._bound_any)
            )
            action(own)

    def store_objects(self, writer: str = "", *, pause_s: float = 0.4) -> None:
        """Store objects and invoke asynchronously until it is over."""
        for number in itertools.count(1):
            if self.is_over.wait(pause_s):
                return
            name = f"{writer}{number}"
            prompt, id_ = f"asynchronous {name}", f"a-{name}"
            body = json.dumps({"id": id_, "prompt": prompt})
            self._s3.call("put_object", Bucket=BUCKET, Key=f"in/{name}", Body=body)
            self._history.acknowledged[f"object in/{name}"] = body
            answer = self._runtime.call(
                "invoke_endpoint_async",
                EndpointName=ASYNCHRONOUS,
                ContentType="application/json",
                InputLocation=f"s3://{BUCKET}/in/{name}",
            )
            self._asynchronous.append((id_, prompt, answer["OutputLocation"], answer["FailureLocation"]))

    def _create_any(self, own: list[str]) -> None:
        if len(own) < _MAX_ENDPOINTS:
            self._num_made += 1
            self._create(f"own-{self._num_made}", count=self._random.randint(1, 2))

    def _update_any(self, own: list[str]) -> None:
        if name := self._chosen([*own, *self._changed[:1]]):
            config = self._define(count := self._random.randint(1, 2))
            self._history.previous[name] = self._history.asked[name].config
            self._change(
                "update_endpoint",
                EndpointState(config=config, count=count),
                EndpointName=name,
                EndpointConfigName=config,
            )

    def _scale_any(self, own: list[str]) -> None:
        if name := self._chosen([*own, *self._changed[1:]]):
            asked = EndpointState(config=self._history.asked[name].config, count=self._random.randint(1, 3))
            wanted = [{"VariantName": VARIANT, "DesiredInstanceCount": asked.count}]
            self._change(
                "update_endpoint_weights_and_capacities", asked, EndpointName=name, DesiredWeightsAndCapacities=wanted
            )

    def _delete_any(self, own: list[str]) -> None:
        if len(own) > 1:
            name = self._random.choice(own)
            self._sagemaker.call("delete_endpoint", EndpointName=name, done="Could not find")
            del self._history.asked[name]
            self._history.deleted.add(name)

    def _bound_any(self, _: list[str]) -> None:
        self._bound(self._random.randint(1, 3))

    def _bound(self, count: int) -> None:
        """Let Application Auto Scaling set a number of instances: the minimum and the maximum are the same."""
        asked = self._history.asked[SCALED]
        self._history.asked[SCALED] = EndpointState(config=asked.config, count=count)
        self._history.bounds.append(count)
        self._scaling.call("register_scalable_target", **_TARGET, MinCapacity=count, MaxCapacity=count)

    def activities(self) -> list[Activity]:
        """Return the scaling activities, newest first, once none is in progress."""
        deadline_s = time.monotonic() + _SETTLE_S
        while True:
            found = self._activities()
            if time.monotonic() > deadline_s or all(each.status not in {"Pending", "InProgress"} for each in found):
                return found
            time.sleep(0.3)

    def _activities(self) -> list[Activity]:
        found, more = [], {"MaxResults": 50}
        while True:
            page = self._scaling.call("describe_scaling_activities", **_TARGET, **more)
            found += [
                Activity(
                    id=activity["ActivityId"],
                    status=activity["StatusCode"],
                    capacity=int(activity["Description"].rstrip(".").rpartition(" ")[2]),
                    message=activity.get("StatusMessage", ""),
                )
                for activity in page["ScalingActivities"]
            ]
            if "NextToken" not in page:
                return found
            more["NextToken"] = page["NextToken"]

    def _chosen(self, names: list[str]) -> str | None:
        """Return an endpoint that serves: others cannot be changed."""
        if not names:
            return None
        name = self._random.choice(names)
        found = self._sagemaker.call("describe_endpoint", EndpointName=name)
        asked = self._history.asked[name]
        is_as_asked = found["EndpointConfigName"] == asked.config
        return name if found["EndpointStatus"] == "InService" and is_as_asked else None

    def _change(self, operation: str, asked: EndpointState, **parameters: Any) -> None:
        before = self._history.asked[parameters["EndpointName"]]
        self._history.asked[parameters["EndpointName"]] = asked
        try:
            self._sagemaker.call(operation, done="Cannot update in-progress", **parameters)
        except Refused:  # in the meantime it has begun to be changed back
            self._history.asked[parameters["EndpointName"]] = before

    def _define(self, count: int, asynchronous: dict[str, Any] | None = None) -> str:
        """Create a model and a configuration; return their name."""
        self._num_made += 1
        name = f"definition-{self._num_made}"
        container = {"Image": IMAGE, "Environment": {"TOKEN": name}}
        exists = "Cannot create already existing"
        self._sagemaker.call(
            "create_model", ModelName=name, PrimaryContainer=container, ExecutionRoleArn=ROLE, done=exists
        )
        self._history.acknowledged[f"model {name}"] = name
        variant = {"VariantName": VARIANT, "ModelName": name, "InitialInstanceCount": count}
        more = {} if asynchronous is None else {"AsyncInferenceConfig": asynchronous}
        self._sagemaker.call(
            "create_endpoint_config",
            EndpointConfigName=name,
            ProductionVariants=[{**variant, "InstanceType": "ml.m5.large"}],
            done=exists,
            **more,
        )
        self._history.acknowledged[f"configuration {name}"] = f"{name} {count}"
        return name

    def _create(self, name: str, *, count: int, asynchronous: dict[str, Any] | None = None) -> None:
        config = self._define(count, asynchronous)
        self._sagemaker.call(
            "create_endpoint", EndpointName=name, EndpointConfigName=config, done="Cannot create already existing"
        )
        self._history.asked[name] = EndpointState(config=config, count=count)

    def settle(self) -> None:
        """Wait until no endpoint changes any more."""
        deadline_s = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline_s:
            self._history.described = self._describe()
            if self._history.described.keys() == self._history.asked.keys() and all(
                self._is_settled(name) for name in self._history.asked
            ):
                return
            time.sleep(0.3)

    def _is_settled(self, name: str) -> bool:
        described, asked = self._history.described[name], self._history.asked[name]
        if described.status == "Failed":
            return True
        is_other = described.config != asked.config
        is_as_asked = described.count == asked.count or bool(described.reason)
        return described.status == "InService" and (is_other or is_as_asked)

    def _describe(self) -> dict[str, EndpointState]:
        found = {}
        for entry in self._sagemaker.call("list_endpoints", MaxResults=100)["Endpoints"]:
            try:
                endpoint = self._sagemaker.call("describe_endpoint", EndpointName=entry["EndpointName"])
            except Refused:  # it is gone by now
                continue
            counts = [variant.get("CurrentInstanceCount", 0) for variant in endpoint.get("ProductionVariants", [])]
            found[entry["EndpointName"]] = EndpointState(
                config=endpoint["EndpointConfigName"],
                count=sum(counts),
                status=endpoint["EndpointStatus"],
                reason=endpoint.get("FailureReason", ""),
            )
        return found

    def read_back(self) -> None:
        """Read all that was acknowledged, and the outcomes of asynchronous invocations."""
        for key in self._history.acknowledged:
            kind, _, name = key.partition(" ")
            try:
                self._history.found[key] = self._read(kind, name)
            except Refused:
                continue
        deadline_s = time.monotonic() + _SETTLE_S
        for id_, prompt, output, failure in self._asynchronous:
            while (outcome := self._outcome(prompt, output, failure)) == "missing" and time.monotonic() < deadline_s:
                time.sleep(0.3)
            self._history.asynchronous[id_] = outcome

    def _read(self, kind: str, name: str) -> str:
        if kind == "model":
            found = self._sagemaker.call("describe_model", ModelName=name)
            return str(found["PrimaryContainer"]["Environment"]["TOKEN"])
        if kind == "configuration":
            (variant,) = self._sagemaker.call("describe_endpoint_config", EndpointConfigName=name)["ProductionVariants"]
            return f"{variant['ModelName']} {variant['InitialInstanceCount']}"
        return self._object(name).decode()

    def _outcome(self, prompt: str, output: str, failure: str) -> str:
        try:
            found = json.loads(self._object(output.partition(f"{BUCKET}/")[2]))
        except Refused:
            try:
                return f"failed: {self._object(failure.partition(f'{BUCKET}/')[2]).decode()}"
            except Refused:
                return "missing"
        return RIGHT if found == {"text": answer_of(prompt)} else WRONG

    def _object(self, key: str) -> bytes:
        return read_body(self._s3.call("get_object", Bucket=BUCKET, Key=key))

    def invocations(self, targets: Sequence[Target]) -> float | None:
        """Return CloudWatch's number of invocations of the endpoints under load."""
        caller = Caller("cloudwatch", targets)
        total = 0.0
        try:
            for name in STEADY:
                points = caller.call(
                    "get_metric_statistics",
                    Namespace="AWS/SageMaker",
                    MetricName="Invocations",
                    Dimensions=[{"Name": "EndpointName", "Value": name}, {"Name": "VariantName", "Value": VARIANT}],
                    StartTime=time.time() - 7200,
                    EndTime=time.time() + 1200,
                    Period=60,
                    Statistics=["Sum"],
                )["Datapoints"]
                total += sum(point["Sum"] for point in points)
        except (Refused, ClientError, BotoCoreError) as error:
            self._history.incidents.append(f"CloudWatch could not be read: {error}")
            return None
        finally:
            caller.close()
        return total

    @property
    def unclear(self) -> list[str]:
        """Errors that told these clients nothing."""
        return [error for caller in self._callers for error in caller.unclear]

    def close(self) -> None:
        for caller in self._callers:
            caller.close()
