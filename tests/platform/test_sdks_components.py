"""The flow of inference components with the SageMaker SDK: copies, policies, out under load, in without it."""

import sys
from pathlib import Path

import pytest

from .running import Running, until
from .test_sdks import EXAMPLES, check_all, started

pytestmark = pytest.mark.model

PIECES = (
    "copies under load: 3",
    "copies without load: 2",
    "Successful: Setting desired copy count to 3. Cause: monitor alarm TargetTracking-inference-component/",
    "in state ALARM triggered policy fewer-copies",
)


@pytest.mark.timeout(1200)
def test_a_component_scales_out_under_load_and_in_without_it(
    platform: Running, shell: dict[str, str], smollm2_path: Path, tmp_path: Path
) -> None:
    process = started(sys.executable, EXAMPLES / "components.py", shell, smollm2_path, tmp_path / "components")
    check_all({"components": process}, {"components": PIECES}, platform)
    client = platform.client("sagemaker")
    until(lambda: not client.list_endpoints(NameContains="smollm2-comp")["Endpoints"], "the endpoint is deleted")
    assert not client.list_inference_components()["InferenceComponents"]
    assert not client.list_endpoint_configs(NameContains="smollm2-comp")["EndpointConfigs"]
    autoscaling, cloudwatch = platform.client("application-autoscaling"), platform.client("cloudwatch")
    assert not autoscaling.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]
    assert not cloudwatch.describe_alarms()["MetricAlarms"]
