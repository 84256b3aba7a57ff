"""Endpoints, called with boto3."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.platform.control.api.endpoints import status_message
from headrace.platform.control.model.worker import WORKER
from headrace.platform.state.routes import ROUTE
from headrace.testing.fake_launcher import fails_after, ready_after
from tests.platform.control.calls import VARIANT, make_config
from tests.platform.control.support import IMAGE, ROLE, Platform
from tests.waiting import WAIT_S

WAITER = {"Delay": 0.1, "MaxAttempts": round(WAIT_S / 0.1)}


def deployed(platform: Platform, name: str = "e") -> Any:
    """Return a client, after the endpoint has come into service."""
    client = platform.client("sagemaker")
    make_config(client)
    client.create_endpoint(EndpointName=name, EndpointConfigName="c")
    platform.wait_for(client, name, "InService")
    return client


def error_of(caught: pytest.ExceptionInfo[ClientError]) -> tuple[str, str]:
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def test_the_message_of_a_variant_has_a_line_for_each_placement_and_each_notice() -> None:
    places = ["a runs on GPU 0 (NVIDIA L4).", "b runs on GPU 1, 2."]
    assert status_message(places, ()) == "\n".join(places)
    assert status_message(places[:1], ["X has no effect.", "Y is not here."]) == (
        f"{places[0]}\nNote: X has no effect.\nNote: Y is not here."
    )


def test_an_endpoint_can_be_described_as_soon_as_it_is_created(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    make_config(client)
    arn = client.create_endpoint(EndpointName="My-Endpoint", EndpointConfigName="c")["EndpointArn"]
    assert arn == "arn:aws:sagemaker:us-east-1:123456789012:endpoint/my-endpoint"
    found = client.describe_endpoint(EndpointName="My-Endpoint")
    assert (found["EndpointStatus"], found["EndpointArn"], found["EndpointConfigName"]) == ("Creating", arn, "c")
    assert found["ProductionVariants"][0]["CurrentInstanceCount"] == 0


def test_the_waiter_of_boto3_sees_it_come_into_service(platform: Platform) -> None:
    client = platform.client("sagemaker")
    make_config(client)
    client.create_endpoint(EndpointName="e", EndpointConfigName="c")
    client.get_waiter("endpoint_in_service").wait(EndpointName="e", WaiterConfig=WAITER)
    found = client.describe_endpoint(EndpointName="e")
    (variant,) = found["ProductionVariants"]
    assert (variant["CurrentInstanceCount"], variant["DesiredInstanceCount"], variant["CurrentWeight"]) == (1, 1, 1.0)
    assert variant["DeployedImages"][0]["SpecifiedImage"] == IMAGE
    assert "ml.g5.2xlarge has a GPU, which is not here." in variant["VariantStatus"][0]["StatusMessage"]
    assert "FailureReason" not in found


def test_it_is_described_after_its_configuration_and_its_model_are_gone(platform: Platform) -> None:
    client = deployed(platform)
    client.delete_model(ModelName="m")
    client.delete_endpoint_config(EndpointConfigName="c")
    found = client.describe_endpoint(EndpointName="e")
    assert (found["EndpointStatus"], found["EndpointConfigName"]) == ("InService", "c")
    client.delete_endpoint(EndpointName="e")
    client.get_waiter("endpoint_deleted").wait(EndpointName="e", WaiterConfig=WAITER)
    assert list(platform.machine.living()) == []
    assert platform.store.list(WORKER) == []


def test_members_without_effect_are_described_as_notices(platform: Platform) -> None:
    client = platform.client("sagemaker")
    make_config(client, "plain")
    client.create_endpoint_config(
        EndpointConfigName="c",
        ProductionVariants=[{**VARIANT, "RoutingConfig": {"RoutingStrategy": "KV_AWARE"}}],
        EnableNetworkIsolation=True,
        DataCaptureConfig={
            "EnableCapture": True,
            "InitialSamplingPercentage": 100,
            "DestinationS3Uri": "s3://bucket/captured",
            "CaptureOptions": [{"CaptureMode": "Input"}],
        },
    )
    client.create_endpoint(EndpointName="e", EndpointConfigName="c")
    found = platform.wait_for(client, "e", "InService")
    assert found["DataCaptureConfig"]["CaptureStatus"] == "Started"
    routed = platform.store.get(ROUTE, "e").spec.capture
    assert (routed.destination, routed.percentage) == ("s3://bucket/captured", 100)
    assert (routed.takes_input, routed.takes_output) == (True, False)
    message = found["ProductionVariants"][0]["VariantStatus"][0]["StatusMessage"]
    for part in ("No network is isolated", "KV_AWARE"):
        assert part in message


def test_an_unknown_endpoint_could_not_be_found(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    expected = (
        "ValidationException",
        'Could not find endpoint "arn:aws:sagemaker:us-east-1:123456789012:endpoint/missing".',
    )
    for call in (client.describe_endpoint, client.delete_endpoint):
        with pytest.raises(ClientError) as caught:
            call(EndpointName="missing")
        assert error_of(caught) == expected


def test_a_taken_name_is_refused_ignoring_case(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    make_config(client)
    client.create_endpoint(EndpointName="e", EndpointConfigName="c")
    with pytest.raises(ClientError) as caught:
        client.create_endpoint(EndpointName="E", EndpointConfigName="c")
    code, message = error_of(caught)
    assert code == "ValidationException"
    assert message.startswith("Cannot create already existing endpoint")


def test_an_unknown_configuration_could_not_be_found(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    with pytest.raises(ClientError, match=r'Could not find endpoint configuration "arn:.*endpoint-config/no"'):
        client.create_endpoint(EndpointName="e", EndpointConfigName="no")


def test_a_model_that_cannot_be_loaded_fails_with_its_reason(platform: Platform) -> None:
    platform.machine.script = lambda _spec: fails_after(0.1, message="The file is cut off.")
    platform.logs.write("loading weights", "Error: The file is cut off.")
    client = platform.client("sagemaker")
    make_config(client)
    client.create_endpoint(EndpointName="e", EndpointConfigName="c")
    found = platform.wait_for(client, "e", "Failed")
    assert "did not pass the ping health check" in found["FailureReason"]
    assert found["FailureReason"].endswith("loading weights\nError: The file is cut off.")
    with pytest.raises(ClientError, match="Cannot update failed endpoint"):
        client.update_endpoint(EndpointName="e", EndpointConfigName="c")
    client.delete_endpoint(EndpointName="e")
    client.get_waiter("endpoint_deleted").wait(EndpointName="e", WaiterConfig=WAITER)


def test_an_endpoint_is_deleted_while_it_is_created_and_its_name_is_free_again(platform: Platform) -> None:
    platform.machine.script = lambda _spec: ready_after(1000.0)
    client = platform.client("sagemaker")
    make_config(client)
    client.create_endpoint(EndpointName="e", EndpointConfigName="c")
    client.delete_endpoint(EndpointName="e")
    client.get_waiter("endpoint_deleted").wait(EndpointName="e", WaiterConfig=WAITER)
    platform.machine.script = lambda _spec: ready_after()
    client.create_endpoint(EndpointName="e", EndpointConfigName="c")
    platform.wait_for(client, "e", "InService")


def test_an_update_shows_the_pending_deployment_and_replaces_the_old_one(platform: Platform) -> None:
    client = deployed(platform)
    make_config(client, "c2", InitialInstanceCount=2)
    platform.machine.script = lambda _spec: ready_after(1.0)
    client.update_endpoint(EndpointName="e", EndpointConfigName="c2")
    found = client.describe_endpoint(EndpointName="e")
    assert (found["EndpointStatus"], found["EndpointConfigName"]) == ("Updating", "c")
    assert found["PendingDeploymentSummary"]["EndpointConfigName"] == "c2"
    assert found["PendingDeploymentSummary"]["ProductionVariants"][0]["DesiredInstanceCount"] == 2
    with pytest.raises(ClientError, match="Cannot update in-progress endpoint"):
        client.update_endpoint(EndpointName="e", EndpointConfigName="c")
    found = platform.wait_for(client, "e", "InService")
    assert found["EndpointConfigName"] == "c2"
    assert "PendingDeploymentSummary" not in found


def test_an_update_to_a_broken_model_is_rolled_back_and_says_why(platform: Platform) -> None:
    client = deployed(platform)
    make_config(client, "c2")
    platform.machine.script = lambda _spec: fails_after(0.1, message="It is broken.")
    client.update_endpoint(EndpointName="e", EndpointConfigName="c2")
    found = platform.wait_for(client, "e", "InService")
    assert found["EndpointConfigName"] == "c"
    assert "It is broken." in found["FailureReason"]
    platform.machine.script = lambda _spec: ready_after()
    client.update_endpoint(EndpointName="e", EndpointConfigName="c2")
    found = platform.wait_for(client, "e", "InService")
    assert found["EndpointConfigName"] == "c2"
    assert "FailureReason" not in found


def test_variant_properties_are_retained_if_wanted(platform: Platform) -> None:
    client = deployed(platform)
    change = {"VariantName": "AllTraffic", "DesiredWeight": 5.0, "DesiredInstanceCount": 2}
    client.update_endpoint_weights_and_capacities(EndpointName="e", DesiredWeightsAndCapacities=[change])
    found = platform.wait_for(client, "e", "InService")
    (variant,) = found["ProductionVariants"]
    assert (variant["CurrentWeight"], variant["CurrentInstanceCount"]) == (5.0, 2)
    make_config(client, "c2", InitialVariantWeight=7.0)
    client.update_endpoint(
        EndpointName="e",
        EndpointConfigName="c2",
        RetainAllVariantProperties=True,
        ExcludeRetainedVariantProperties=[{"VariantPropertyType": "DesiredWeight"}],
    )
    (variant,) = platform.wait_for(client, "e", "InService")["ProductionVariants"]
    assert (variant["CurrentWeight"], variant["CurrentInstanceCount"]) == (7.0, 2)


def test_weights_of_an_unknown_variant_are_refused(platform: Platform) -> None:
    client = deployed(platform)
    with pytest.raises(ClientError, match='Variant "other" does not exist'):
        client.update_endpoint_weights_and_capacities(
            EndpointName="e", DesiredWeightsAndCapacities=[{"VariantName": "other", "DesiredWeight": 1.0}]
        )


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        ({"Type": "CANARY", "WaitIntervalInSeconds": 0}, "CanarySize is missing"),
        (
            {
                "Type": "LINEAR",
                "WaitIntervalInSeconds": 0,
                "LinearStepSize": {"Type": "CAPACITY_PERCENT", "Value": 60},
            },
            "expected 10 to 50 %",
        ),
        (
            {
                "Type": "ALL_AT_ONCE",
                "WaitIntervalInSeconds": 0,
                "CanarySize": {"Type": "INSTANCE_COUNT", "Value": 1},
            },
            "does not go with",
        ),
    ],
)
def test_a_deployment_that_contradicts_itself_is_refused(
    still_platform: Platform, routing: dict[str, Any], message: str
) -> None:
    client = still_platform.client("sagemaker")
    make_config(client)
    policy = {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": routing}}
    with pytest.raises(ClientError, match=message):
        client.create_endpoint(EndpointName="e", EndpointConfigName="c", DeploymentConfig=policy)


def test_more_workers_than_an_endpoint_may_have_are_refused(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    make_config(client, InitialInstanceCount=1000)
    with pytest.raises(client.exceptions.ResourceLimitExceeded, match="1000 were requested"):
        client.create_endpoint(EndpointName="e", EndpointConfigName="c")


def test_a_host_of_components_comes_into_service_without_workers(platform: Platform) -> None:
    client = platform.client("sagemaker")
    variant = {"VariantName": "AllTraffic", "InstanceType": "ml.p3.8xlarge", "InitialInstanceCount": 1}
    client.create_endpoint_config(EndpointConfigName="c", ExecutionRoleArn=ROLE, ProductionVariants=[variant])
    client.create_endpoint(EndpointName="e", EndpointConfigName="c")
    found = platform.wait_for(client, "e", "InService")
    assert found["ProductionVariants"][0]["CurrentInstanceCount"] == 1
    assert platform.machine.started == []


def test_endpoints_are_listed_by_state_and_name_page_by_page(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    make_config(client)
    for number in range(5):
        client.create_endpoint(EndpointName=f"e{number}", EndpointConfigName="c")
    first = client.list_endpoints(SortBy="Name", SortOrder="Ascending", MaxResults=3)
    assert [endpoint["EndpointName"] for endpoint in first["Endpoints"]] == ["e0", "e1", "e2"]
    rest = client.list_endpoints(SortBy="Name", SortOrder="Ascending", NextToken=first["NextToken"])
    assert [endpoint["EndpointName"] for endpoint in rest["Endpoints"]] == ["e3", "e4"]
    assert "NextToken" not in rest
    assert len(client.list_endpoints(StatusEquals="Creating")["Endpoints"]) == 5
    assert client.list_endpoints(StatusEquals="InService")["Endpoints"] == []
    assert [endpoint["EndpointName"] for endpoint in client.list_endpoints(NameContains="3")["Endpoints"]] == ["e3"]
