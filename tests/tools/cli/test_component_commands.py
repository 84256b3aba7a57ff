"""`headrace ls`, `describe` and `logs` where there are inference components, against a control plane on a real port."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from headrace.platform.control.model.worker import WORKER
from headrace.tools.cli.endpoints import describe, list_endpoints, needs_text
from headrace.tools.cli.logs import logs
from headrace.tools.cli.scale import scale
from tests.platform.control.calls import component, host, model, until
from tests.platform.control.support import Platform, running_platform

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # a command's clients live as long as its process


def run(command: object, platform: Platform, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--url", platform.url])  # type: ignore[arg-type]


def said(command: object, platform: Platform, *arguments: str) -> str:
    """Return the output of a command without log lines: the server runs in the same process and logs to stdout."""
    lines = run(command, platform, *arguments).stdout.splitlines()
    return "\n".join(line for line in lines if "call.finished" not in line)


@pytest.fixture(scope="module")
def hosting() -> Iterator[Platform]:
    """An endpoint `ep` with the components `chat` (two copies) and `big`, which failed."""
    with running_platform() as platform:
        client = platform.client("sagemaker")
        model(client, "m")
        host(client)
        platform.wait_for(client, "ep", "InService")
        component(client, "chat", copies=2)
        component(client, "big", copies=9, need={"NumberOfAcceleratorDevicesRequired": 1, "MinMemoryRequiredInMb": 128})
        until(client, "chat", "InService", copies=2)
        until(client, "big", "Failed")
        copies = [worker for worker in platform.store.list(WORKER) if worker.spec.copy.component == "chat"]
        platform.logs.write("a line", worker=copies[0].name)
        yield platform


def test_components_are_listed_below_the_endpoints(hosting: Platform) -> None:
    lines = [line.split() for line in run(list_endpoints, hosting).output.splitlines()]
    assert ["ep", "InService", "1/1", "instances"] in [line[:4] for line in lines]
    assert ["chat", "InService", "2/2", "ep", "AllTraffic"] in [line[:5] for line in lines]
    assert ["big", "Failed"] in [line[:2] for line in lines]


def test_components_are_in_the_json_of_their_endpoint(hosting: Platform) -> None:
    [endpoint] = json.loads(said(list_endpoints, hosting, "--json"))
    assert [component["InferenceComponentName"] for component in endpoint["InferenceComponents"]] == ["big", "chat"]
    shown = json.loads(said(describe, hosting, "ep", "--json"))
    assert shown["InferenceComponents"][1]["RuntimeConfig"]["CurrentCopyCount"] == 2


def test_an_endpoint_is_described_with_its_components(hosting: Platform) -> None:
    output = run(describe, hosting, "ep").output
    assert "instances  1 of 1" in output
    assert "copies     2 of 2, on ml.p3.8xlarge" in output
    assert "needs      1 CPU core, 1,024 MB of memory" in output
    assert "There is not enough hardware" in output


def test_a_component_is_described_by_its_own_name(hosting: Platform) -> None:
    output = run(describe, hosting, "chat").output
    assert "endpoint   ep" in output
    assert "arn:aws:sagemaker:us-east-1:123456789012:inference-component/chat" in output
    assert json.loads(said(describe, hosting, "chat", "--json"))["EndpointName"] == "ep"
    missing = run(describe, hosting, "missing")
    assert missing.exit_code == 2
    assert "no endpoint or inference component called missing" in missing.output


def test_a_component_has_a_log_and_its_host_refers_to_it(hosting: Platform) -> None:
    assert said(logs, hosting, "chat") == "a line"
    assert json.loads(said(logs, hosting, "chat", "--json"))["message"] == "a line"
    of_host = run(logs, hosting, "ep")
    assert of_host.exit_code == 2
    assert "hosts inference components with separate logs: big, chat." in of_host.output
    assert "There is no log of an endpoint or inference component called x" in run(logs, hosting, "x").output


def test_requirements_are_formatted_for_people() -> None:
    assert needs_text({"NumberOfAcceleratorDevicesRequired": 1.0, "MinMemoryRequiredInMb": 2048}) == (
        "1 accelerator, 2,048 MB of memory"
    )
    assert needs_text({}) == ""


def test_a_component_is_scaled_and_not_the_instances_below_it(hosting: Platform) -> None:
    refused = run(scale, hosting, "ep", "--min", "0", "--max", "2")
    assert refused.exit_code == 2
    assert "each scaled separately: headrace scale big … (there are big, chat)" in refused.output
    targets = hosting.client("application-autoscaling").describe_scalable_targets(ServiceNamespace="sagemaker")
    assert targets["ScalableTargets"] == []
    assert run(scale, hosting, "chat", "--min", "1", "--max", "2").exit_code == 0
    assert run(scale, hosting, "chat", "--off").exit_code == 0
