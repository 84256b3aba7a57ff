"""Shadow variants of endpoints, and inference experiments, on a platform that is killed after each write."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from headrace.platform.control.api import experiments
from headrace.platform.control.api.context import add_tags, list_tags
from headrace.platform.control.api.definitions import create_endpoint_config, create_model
from headrace.platform.control.api.endpoints import (
    create_endpoint,
    delete_endpoint,
    describe_endpoint,
    update_endpoint,
    update_weights,
)
from headrace.platform.control.loops.experiments import Experiments
from headrace.platform.control.model.definitions import ENDPOINT_CONFIG
from headrace.platform.control.model.experiment import INFERENCE_EXPERIMENT
from headrace.platform.state.records import Json
from headrace.platform.state.routes import ROUTE
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.components.scene import Scene
from tests.platform.control.support import AWS_SCOPE, IMAGE, ROLE

DAY_S = 86_400.0
CAPTURE = {
    "EnableCapture": True,
    "InitialSamplingPercentage": 100,
    "DestinationS3Uri": "s3://b/captured",
    "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
    "CaptureContentTypeHeader": {"JsonContentTypes": ["application/json"]},
}
ASYNC = {"AsyncInferenceConfig": {"OutputConfig": {"S3OutputPath": "s3://b/out"}}}
SERVERLESS = {"ServerlessConfig": {"MemorySizeInMB": 2048, "MaxConcurrency": 5}}


class Killed(Exception):
    """The platform was killed."""


class MortalStore:
    """A store whose process is killed right after each write."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("create", "update", "remove"):
            return found

        def write(*args: Any, **more: Any) -> None:
            found(*args, **more)
            raise Killed

        return write


class Lab(Scene):
    """A scene with an endpoint `e` of model `m`, on which experiments are run; each pass is one of a new process."""

    def call(self, operation: Any, **params: Any) -> Json:
        found: Json = operation(self.context, params)
        return found

    def configure(
        self, name: str, *, model: str = "m", weight: float = 1.0, shadow: Json | None = None, **more: Any
    ) -> None:
        members = {"EndpointConfigName": name, "ProductionVariants": [variant("v", model, weight=weight)], **more}
        if shadow is not None:
            members["ShadowProductionVariants"] = [shadow]
        create_endpoint_config(self.context, members)

    async def start(self, **more: Any) -> None:
        """Create the endpoint and the experiment `x` on it, and wait until the experiment has begun."""
        self.configure("plain")
        self.call(create_endpoint, EndpointName="e", EndpointConfigName="plain")
        await self.run(5)
        self.call(experiments.create_experiment, **experiment(**more))
        await self.run(20)

    async def run(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            with suppress(Killed):
                Experiments(store=MortalStore(self.store), aws_scope=AWS_SCOPE, clock=self.clock).pass_once()
            await self.reconciler.pass_once()

    def seen(self, name: str = "x") -> Json:
        return self.call(experiments.describe_experiment, Name=name)

    @property
    def status(self) -> tuple[str, str]:
        found = self.seen()
        return found["Status"], found.get("StatusReason", "")

    @property
    def endpoint(self) -> Json:
        return self.call(describe_endpoint, EndpointName="e")

    def serving(self) -> dict[str, tuple[float, int]]:
        """Return weight and number of replicas of each variant that is routed to; those of shadows with a *."""
        route = self.store.get(ROUTE, "e").spec
        return {
            f"{each.name}{'*' * (each in route.shadows)}": (
                each.weight,
                sum(len(fleet.replicas) for fleet in each.fleets if fleet.share),
            )
            for each in route.all_variants
        }


def variant(name: str, model: str = "m", **more: Any) -> Json:
    kind = {"InstanceType": "ml.m5.large"} if "ServerlessConfig" not in more else {}
    return {"VariantName": name, "ModelName": model, "InitialVariantWeight": more.pop("weight", 1.0), **kind, **more}


def deployed(name: str, model: str, count: int = 1) -> Json:
    infrastructure = {"InstanceType": "ml.m5.large", "InstanceCount": count}
    return {
        "VariantName": name,
        "ModelName": model,
        "InfrastructureConfig": {
            "InfrastructureType": "RealTimeInference",
            "RealTimeInferenceConfig": infrastructure,
        },
    }


def mode(percentage: int = 100, source: str = "v", shadow: str = "s") -> Json:
    sampled = {"ShadowModelVariantName": shadow, "SamplingPercentage": percentage}
    return {"SourceModelVariantName": source, "ShadowModelVariants": [sampled]}


def experiment(**more: Any) -> Json:
    return {
        "Name": "x",
        "Type": "ShadowMode",
        "RoleArn": ROLE,
        "EndpointName": "e",
        "ModelVariants": [deployed("v", "m"), deployed("s", "n")],
        "ShadowModeConfig": mode(),
        **more,
    }


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.store.close()


def refused(lab: Lab, operation: Any, code: str = "ValidationException", **params: Any) -> str:
    with pytest.raises(AwsError) as caught:
        lab.call(operation, **params)
    assert caught.value.code == code
    return str(caught.value.message)


def test_configurations_that_cannot_have_a_shadow_are_refused(lab: Lab) -> None:
    several = {"Containers": [{"Image": IMAGE}]}
    create_model(lab.context, {"ModelName": "one", "ExecutionRoleArn": ROLE, **several})
    two = [variant("v"), variant("w")]
    for message, config in {
        "ProductionVariants has 2 variants; expected one": {"ProductionVariants": two},
        "ShadowProductionVariants has 2 variants; expected one": {"ShadowProductionVariants": [*two[1:], variant("u")]},
        "Two production variants have the name v": {"ShadowProductionVariants": [variant("v")]},
        "cannot have AsyncInferenceConfig": ASYNC,
        "cannot have ServerlessConfig": {"ShadowProductionVariants": [variant("s", **SERVERLESS)]},
        "Could not find model": {"ShadowProductionVariants": [variant("s", "missing")]},
        "cannot have inference components": {
            "ProductionVariants": [{"VariantName": "v", "InstanceType": "ml.m5.large"}],
            "ExecutionRoleArn": ROLE,
        },
    }.items():
        params = {"ProductionVariants": [variant("v")], "ShadowProductionVariants": [variant("s", "one")], **config}
        assert message in refused(lab, create_endpoint_config, EndpointConfigName="c", **params)


async def test_an_endpoint_with_a_shadow_is_described_weighted_and_updated(lab: Lab) -> None:
    lab.configure("shadowed", weight=4.0, shadow={"VariantName": "s", "ModelName": "n", "InstanceType": "ml.m5.large"})
    lab.call(create_endpoint, EndpointName="e", EndpointConfigName="shadowed")
    await lab.run(5)
    found = lab.endpoint
    ((production,), (shadow,)) = found["ProductionVariants"], found["ShadowProductionVariants"]
    assert (production["VariantName"], shadow["VariantName"]) == ("v", "s")
    assert (shadow["CurrentWeight"], shadow["CurrentInstanceCount"], shadow["DesiredInstanceCount"]) == (1.0, 1, 1)
    assert lab.serving() == {"v": (4.0, 1), "s*": (0.25, 1)}
    change = {"VariantName": "s", "DesiredWeight": 2.0, "DesiredInstanceCount": 2}
    lab.call(update_weights, EndpointName="e", DesiredWeightsAndCapacities=[change])
    await lab.run(5)
    assert lab.serving() == {"v": (4.0, 1), "s*": (0.5, 2)}
    lab.configure("plain")
    lab.call(update_endpoint, EndpointName="e", EndpointConfigName="plain")
    await lab.run(1)
    assert "ShadowProductionVariants" not in lab.endpoint["PendingDeploymentSummary"]
    await lab.run(5)
    assert "ShadowProductionVariants" not in lab.endpoint
    assert lab.serving() == {"v": (1.0, 1)}


async def test_an_experiment_is_scheduled_started_changed_and_promoted(lab: Lab) -> None:
    start_s = lab.clock() + DAY_S
    storage = {"Destination": "s3://b/captured", "ContentType": {"JsonContentTypes": ["application/json"]}}
    await lab.start(Schedule={"StartTime": start_s}, DataStorageConfig=storage, Tags=[{"Key": "a", "Value": "b"}])
    assert lab.status == ("Created", "")
    found = lab.seen()
    assert found["Schedule"] == {"StartTime": start_s, "EndTime": start_s + 7 * DAY_S}
    assert found["EndpointMetadata"] == {
        "EndpointName": "e",
        "EndpointConfigName": "plain",
        "EndpointStatus": "InService",
    }
    assert [each["Status"] for each in found["ModelVariants"]] == ["InService", "Creating"]
    assert lab.call(list_tags, ResourceArn=found["Arn"])["Tags"] == [{"Key": "a", "Value": "b"}]
    lab.call(add_tags, ResourceArn=found["Arn"], Tags=[{"Key": "c", "Value": "d"}])
    lab.call(experiments.update_experiment, Name="x", Description="d", Schedule={"EndTime": start_s + DAY_S})
    lab.call(experiments.start_experiment, Name="x")
    assert lab.status == ("Starting", "")
    assert "is Starting" in refused(lab, experiments.start_experiment, "ConflictException", Name="x")
    await lab.run(20)
    found = lab.seen()
    assert (found["Status"], found["Description"]) == ("Running", "d")
    assert [each["Status"] for each in found["ModelVariants"]] == ["InService", "InService"]
    assert lab.serving() == {"v": (1.0, 1), "s*": (1.0, 1)}
    config = lab.store.get(ENDPOINT_CONFIG, found["EndpointMetadata"]["EndpointConfigName"]).spec.members
    assert config["DataCaptureConfig"] == CAPTURE
    assert "is Running" in refused(lab, experiments.delete_experiment, "ConflictException", Name="x")
    later = {"StartTime": lab.clock()}
    assert "only the EndTime" in refused(lab, experiments.update_experiment, Name="x", Schedule=later)
    lab.call(experiments.update_experiment, Name="x", ShadowModeConfig=mode(40))
    assert lab.status == ("Updating", "")
    await lab.run(20)
    assert lab.status == ("Running", "")
    assert lab.serving() == {"v": (1.0, 1), "s*": (0.4, 1)}
    lab.call(
        experiments.stop_experiment,
        Name="x",
        ModelVariantActions={"v": "Remove", "s": "Promote"},
        DesiredModelVariants=[deployed("s", "n", 2)],
        DesiredState="Completed",
        Reason="It is better.",
    )
    assert lab.status == ("Stopping", "It is better.")
    assert [each["Status"] for each in lab.seen()["ModelVariants"]] == ["Deleting", "InService"]
    await lab.run(20)
    assert lab.status == ("Completed", "It is better.")
    assert [each["Status"] for each in lab.seen()["ModelVariants"]] == ["Deleted", "InService"]
    assert lab.serving() == {"s": (1.0, 2)}
    assert "DataCaptureConfig" not in lab.endpoint
    names = sorted(entry.name for entry in lab.store.entries(ENDPOINT_CONFIG))
    assert names == ["plain", lab.endpoint["EndpointConfigName"]]
    lab.call(experiments.delete_experiment, Name="x")
    assert "does not exist" in refused(lab, experiments.describe_experiment, "ResourceNotFound", Name="x")


@pytest.mark.parametrize(
    ("actions", "variants", "state", "expected"),
    [
        ({"v": "Retain", "s": "Remove"}, [], "Completed", {"v": (1.0, 1)}),
        ({"v": "Retain"}, [deployed("v", "n", 2)], None, {"v": (1.0, 2)}),
        ({"v": "Retain", "s": "Retain"}, [], "Completed", {"v": (1.0, 1), "s*": (1.0, 1)}),
        ({"v": "Retain", "s": "Retain"}, [deployed("s", "m", 2)], "Completed", {"v": (1.0, 1), "s*": (1.0, 2)}),
    ],
)
async def test_a_stop_leaves_the_variants_that_it_names(
    lab: Lab, actions: Json, variants: list[Json], state: str | None, expected: Json
) -> None:
    await lab.start(ModelVariants=[deployed("s", "n")])
    more = {"DesiredState": state} if state else {}
    lab.call(experiments.stop_experiment, Name="x", ModelVariantActions=actions, DesiredModelVariants=variants, **more)
    await lab.run(20)
    assert lab.status == (state or "Cancelled", "")
    assert lab.serving() == expected
    assert lab.endpoint["EndpointStatus"] == "InService"


async def test_an_experiment_ends_with_its_schedule_and_reverts_the_endpoint(lab: Lab) -> None:
    await lab.start(Schedule={"EndTime": lab.clock() + 100})
    assert lab.status == ("Running", "")
    await lab.run(100)
    assert lab.status == ("Completed", "")
    assert (lab.endpoint["EndpointConfigName"], lab.serving()) == ("plain", {"v": (1.0, 1)})
    assert lab.seen()["CompletionTime"] <= lab.clock()


async def test_an_experiment_that_cannot_go_on_is_cancelled(lab: Lab) -> None:
    await lab.start(ModelVariants=[deployed("s", "bad")])
    await lab.run(40)
    state, reason = lab.status
    assert (state, "It is bad." in reason) == ("Cancelled", True), reason
    assert (lab.endpoint["EndpointConfigName"], lab.serving()) == ("plain", {"v": (1.0, 1)})
    lab.call(experiments.create_experiment, **experiment(Name="y"))
    await lab.run(20)
    lab.call(experiments.update_experiment, Name="y", ModelVariants=[deployed("s", "bad")])
    await lab.run(60)
    found = lab.seen("y")
    assert (found["Status"], "It is bad." in found["StatusReason"]) == ("Cancelled", True)
    assert (lab.endpoint["EndpointConfigName"], lab.serving()) == ("plain", {"v": (1.0, 1)})
    lab.call(experiments.create_experiment, **experiment(Name="z"))
    await lab.run(20)
    lab.configure("other", model="n")
    lab.call(update_endpoint, EndpointName="e", EndpointConfigName="other")
    await lab.run(20)
    assert lab.seen("z")["StatusReason"] == "The endpoint was updated outside of the experiment."
    assert lab.endpoint["EndpointConfigName"] == "other"
    lab.call(experiments.create_experiment, **experiment(Name="w"))
    lab.call(delete_endpoint, EndpointName="e")
    await lab.run(20)
    assert lab.seen("w")["StatusReason"] == "The endpoint was deleted."
    listed = lab.call(experiments.list_experiments, SortBy="Name", SortOrder="Ascending", MaxResults=3)
    assert [each["Name"] for each in listed["InferenceExperiments"]] == ["w", "x", "y"]
    more = lab.call(
        experiments.list_experiments,
        SortBy="Name",
        SortOrder="Ascending",
        MaxResults=3,
        NextToken=listed["NextToken"],
    )
    assert [each["Name"] for each in more["InferenceExperiments"]] == ["z"]
    assert not lab.call(experiments.list_experiments, StatusEquals="Running")["InferenceExperiments"]


async def test_experiments_that_cannot_be_run_are_refused(lab: Lab) -> None:
    lab.configure("plain")
    lab.call(create_endpoint, EndpointName="e", EndpointConfigName="plain")
    now_s = lab.clock()
    for message, more in {
        "Could not find endpoint": {"EndpointName": "missing"},
        "Could not find model": {"ModelVariants": [deployed("s", "missing")]},
        "SourceModelVariantName is w": {
            "ShadowModeConfig": mode(source="w"),
            "ModelVariants": [deployed("s", "n")],
        },
        "ModelVariants are v; expected the shadow variant s": {"ModelVariants": [deployed("v", "n")]},
        "are both v": {"ShadowModeConfig": mode(shadow="v"), "ModelVariants": [deployed("v", "n")]},
        "SamplingPercentage is -1": {"ShadowModeConfig": mode(-1)},
        "at most 30": {"Schedule": {"StartTime": now_s, "EndTime": now_s + 31 * DAY_S}},
        "has passed": {"Schedule": {"StartTime": now_s - DAY_S, "EndTime": now_s}},
    }.items():
        assert message in refused(lab, experiments.create_experiment, **experiment(**more))
    lab.call(experiments.create_experiment, **experiment(Schedule={"StartTime": now_s + DAY_S}))
    taken = refused(lab, experiments.create_experiment, "ResourceInUse", **experiment())
    assert "x already exists" in taken
    assert "used by" in refused(lab, experiments.create_experiment, "ResourceInUse", **experiment(Name="y"))
    await lab.run(3)
    for message, more in {
        "expected Retain": {"ModelVariantActions": {"v": "Retain", "s": "Promote"}},
        "has w": {"ModelVariantActions": {"w": "Retain"}},
        "expected variants that stay: v": {
            "ModelVariantActions": {"v": "Retain"},
            "DesiredModelVariants": [deployed("s", "m")],
        },
    }.items():
        assert message in refused(lab, experiments.stop_experiment, Name="x", **more)
    lab.call(experiments.stop_experiment, Name="x", ModelVariantActions={"v": "Retain"}, Reason="r")
    await lab.run(3)
    assert lab.status == ("Cancelled", "r")
    assert "is Cancelled" in refused(lab, experiments.update_experiment, "ConflictException", Name="x")
    assert lab.store.count(INFERENCE_EXPERIMENT) == 1
