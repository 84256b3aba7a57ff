"""Quotas of resources, and of what one resource holds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from headrace.platform.control.api.context import MAX_ENVIRONMENT_BYTES, MAX_RECORDS, check_environment, check_number
from headrace.platform.state.records import AnyKind
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.calls import CONTAINER, NEED, refusal
from tests.platform.control.support import ROLE, Platform

if TYPE_CHECKING:
    from headrace.platform.state.store import Store


@dataclass
class Counted:
    """A store with a number of records."""

    number: int

    def count(self, _kind: AnyKind) -> int:
        return self.number


@pytest.mark.parametrize("kind", MAX_RECORDS, ids=str)
def test_a_resource_beyond_its_quota_is_refused_in_awss_words(kind: AnyKind) -> None:
    check_number(cast("Store", Counted(MAX_RECORDS[kind] - 1)), kind)
    with pytest.raises(AwsError, match="The account-level service limit 'Number of ") as caught:
        check_number(cast("Store", Counted(MAX_RECORDS[kind])), kind)
    assert (caught.value.code, caught.value.http_status) == ("ResourceLimitExceeded", 400)


@pytest.mark.parametrize("environment", [{"K" * 1024: "é" * 1024}, {f"K{n}": "v" * 1000 for n in range(32)}])
def test_an_environment_is_measured_in_bytes_with_its_names(environment: dict[str, str]) -> None:
    size = sum(len((name + value).encode()) for name, value in environment.items())
    assert size <= MAX_ENVIRONMENT_BYTES
    check_environment({"Environment": environment})
    with pytest.raises(AwsError, match=f"have {MAX_ENVIRONMENT_BYTES + 1} bytes"):
        check_environment({"Environment": {**environment, "": "x" * (MAX_ENVIRONMENT_BYTES - size + 1)}})


def test_every_container_has_the_limit(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    large: dict[str, Any] = {**CONTAINER, "Environment": {f"K{n}": "v" * 1000 for n in range(40)}}
    assert "Environment have" in refusal(
        client.create_model, ModelName="m", ExecutionRoleArn=ROLE, PrimaryContainer=large
    )
    variant = {"VariantName": "v", "InstanceType": "ml.m5.large", "InitialInstanceCount": 1}
    client.create_endpoint_config(EndpointConfigName="c", ExecutionRoleArn=ROLE, ProductionVariants=[variant])
    client.create_endpoint(EndpointName="e", EndpointConfigName="c")
    container = {"Image": large["Image"], "Environment": large["Environment"]}
    specification = {"Container": container, "ComputeResourceRequirements": NEED}
    for more in ({"Specification": specification}, {"Specifications": [specification]}):
        assert "Environment have" in refusal(
            client.create_inference_component, InferenceComponentName="i", EndpointName="e", VariantName="v", **more
        )
