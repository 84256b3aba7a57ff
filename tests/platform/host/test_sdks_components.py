"""
The flow of inference components with the SageMaker SDK: copies, policies, out under load, in without it.

Two scripts at a time, as both wait for minutes: one scales copies, the other the instances that they are on. Their
TGI image is a dumb server here, so that minutes of load cost no CPU time; `test_sdks` has it with the real model.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .component_scene import dumb_up
from .conftest import shell_for
from .running import Running, until
from .sdk_scripts import EXAMPLES, SDK_2, check_all, started, warm_python

PIECES = {
    "components": (
        "copies under load: 3",
        "copies without load: 2",
        "Successful: Setting desired copy count to 3. Cause: monitor alarm TargetTracking-inference-component/",
        "in state ALARM triggered policy fewer-copies",
    ),
    "llama3_autoscaling": (
        "at first (instances, copies): (1, 4)",
        "under load: (2, 8)",
        "Successful: Setting desired instance count to 2. Cause: monitor alarm TargetTracking-endpoint/llama3-chat-",
        "in state ALARM triggered policy autoscale-policy-llama3-8b",
        "follows with 8 copies (declared: 4 for 1 instance).",
    ),
}
"""What each script prints. The second would shrink after 15 minutes: `test_followers` has that, on another clock."""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Running]:
    running = dumb_up(tmp_path / "data", image="huggingface-pytorch-tgi-inference*")
    yield running
    assert running.stop() == 0, running.log()


@pytest.mark.timeout(1200)
def test_components_and_their_instances_scale_out_under_load_and_components_in_without_it(
    platform: Running, tmp_path: Path
) -> None:
    shell, model = shell_for(platform), tmp_path / "model"
    with warm_python(sys.executable, SDK_2, shell, tmp_path) as python:
        processes = {name: started(python, EXAMPLES / f"{name}.py", shell, model, tmp_path / name) for name in PIECES}
        check_all(processes, PIECES, platform)
    client = platform.client("sagemaker")
    for made in ("smollm2-comp", "llama3-chat"):
        until(lambda made=made: not client.list_endpoints(NameContains=made)["Endpoints"], "the endpoint is deleted")
        assert not client.list_endpoint_configs(NameContains=made)["EndpointConfigs"]
    assert not client.list_inference_components()["InferenceComponents"]
    autoscaling, cloudwatch = platform.client("application-autoscaling"), platform.client("cloudwatch")
    assert not autoscaling.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]
    assert not cloudwatch.describe_alarms()["MetricAlarms"]
