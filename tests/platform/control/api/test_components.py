"""Inference components, called with boto3, with fake workers."""

import re
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.worker import WORKER
from headrace.platform.state.routes import ROUTE
from headrace.testing.fake_launcher import fails_after, ready_after
from tests.platform.control.calls import NEED, component, host, model, until
from tests.platform.control.support import Platform, running_platform
from tests.waiting import WAIT_S


def ready(platform: Platform) -> Any:
    client = platform.client("sagemaker")
    model(client, "m")
    host(client)
    platform.wait_for(client, "ep", "InService")
    return client


def test_a_component_is_created_scaled_to_zero_and_back_and_deleted(platform: Platform) -> None:
    client = ready(platform)
    component(client, "c", copies=4, need={**NEED, "NumberOfAcceleratorDevicesRequired": 1})
    assert client.describe_inference_component(InferenceComponentName="c")["InferenceComponentStatus"] == "Creating"
    found = until(client, "c", "InService", copies=4)
    assert found["RuntimeConfig"]["PlacementStatus"] == [{"InstanceType": "ml.p3.8xlarge", "CurrentCopyCount": 4}]
    for number in (0, 2):
        client.update_inference_component_runtime_config(
            InferenceComponentName="c", DesiredRuntimeConfig={"CopyCount": number}
        )
        until(client, "c", "InService", copies=number)
        route = platform.store.get(ROUTE, "ep")
        assert route is not None
        (routed,) = route.spec.components
        assert routed.route.standby == (number == 0)
    with pytest.raises(ClientError, match=r"Cannot delete endpoint with inference component associated.*c\."):
        client.delete_endpoint(EndpointName="ep")
    client.delete_inference_component(InferenceComponentName="c")
    deadline_s = time.monotonic() + WAIT_S
    while platform.store.get(INFERENCE_COMPONENT, "c") is not None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    with pytest.raises(ClientError, match="Could not find inference component"):
        client.describe_inference_component(InferenceComponentName="c")
    client.delete_endpoint(EndpointName="ep")


def test_several_components_share_the_instances_and_have_separate_logs(platform: Platform) -> None:
    client = ready(platform)
    for name in ("one", "two"):
        component(client, name)
        until(client, name, "InService")
    listed = client.list_inference_components(EndpointNameEquals="ep", SortBy="Name", SortOrder="Ascending")
    assert [entry["InferenceComponentName"] for entry in listed["InferenceComponents"]] == ["one", "two"]
    groups = {worker.spec.log_group for worker in platform.store.list(WORKER)}
    assert groups == {f"/aws/sagemaker/InferenceComponents/{name}" for name in ("one", "two")}
    assert len({worker.spec.copy.instance for worker in platform.store.list(WORKER)}) == 1


def test_a_copy_without_room_fails_and_says_why(platform: Platform) -> None:
    client = ready(platform)
    component(client, "c", copies=5, need={**NEED, "NumberOfAcceleratorDevicesRequired": 1})
    reason = until(client, "c", "Failed")["FailureReason"]
    assert "There is not enough hardware resources" in reason
    assert re.search(r"One more copy needs .* 1 accelerator and \d+ MB; no instance has that left", reason)
    assert "1 of at most 1 instances of type ml.p3.8xlarge, with 32 CPU cores, 4 accelerators and 249856 MB" in reason
    assert "together they have room for 4 copies" in reason


def test_the_error_for_a_copy_larger_than_an_instance_has_whole_numbers(platform: Platform) -> None:
    client = ready(platform)
    component(client, "c", need={"MinMemoryRequiredInMb": 999_999_999})
    assert "0 accelerators and 999999999 MB; an instance of" in until(client, "c", "Failed")["FailureReason"]


def test_managed_instances_grow_to_fit() -> None:
    with running_platform() as platform:
        client = platform.client("sagemaker")
        model(client, "m")
        managed = {"Status": "ENABLED", "MinInstanceCount": 1, "MaxInstanceCount": 2}
        host(client, ManagedInstanceScaling=managed)
        platform.wait_for(client, "ep", "InService")
        component(client, "c", copies=5, need={**NEED, "NumberOfAcceleratorDevicesRequired": 1})
        until(client, "c", "InService", copies=5)
        (variant,) = client.describe_endpoint(EndpointName="ep")["ProductionVariants"]
        assert variant["CurrentInstanceCount"] == 2


def test_an_update_to_a_broken_model_is_rolled_back(platform: Platform) -> None:
    client = ready(platform)
    model(client, "bad")

    def script(spec: WorkerSpec) -> Any:
        return fails_after(message="It is broken.") if spec.environment["HF_MODEL_ID"] == "bad" else ready_after()

    platform.machine.script = script
    component(client, "c", copies=2)
    until(client, "c", "InService", copies=2)
    client.update_inference_component(
        InferenceComponentName="c",
        Specification={"ModelName": "bad", "ComputeResourceRequirements": NEED},
        DeploymentConfig={
            "RollingUpdatePolicy": {
                "MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1},
                "WaitIntervalInSeconds": 0,
            }
        },
    )
    found = until(client, "c", "InService", copies=2)
    assert "It is broken." in found["FailureReason"]
    assert found["Specification"]["ModelName"] == "m"


def test_an_invalid_component_is_refused(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    model(client, "m")
    client.create_endpoint_config(
        EndpointConfigName="own",
        ProductionVariants=[
            {"VariantName": "a", "ModelName": "m", "InstanceType": "ml.m5.large", "InitialInstanceCount": 1}
        ],
    )
    client.create_endpoint(EndpointName="ep", EndpointConfigName="own")
    with pytest.raises(ClientError, match="Inference Components are not supported in this Endpoint"):
        component(client, "c")
    host(client, "host")
    with pytest.raises(ClientError, match="Could not find inference component"):
        client.create_inference_component(
            InferenceComponentName="c",
            EndpointName="host",
            Specification={"BaseInferenceComponentName": "base"},
        )
