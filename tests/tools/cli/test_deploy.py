"""`headrace deploy` and `headrace rm` against a control plane on a real port with fake workers."""

from collections.abc import Iterator
from dataclasses import dataclass

import click
import pytest
from botocore.exceptions import ClientError

from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.definitions import ENDPOINT_CONFIG, MODEL
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.control.model.worker import WORKER
from headrace.platform.state.records import Kind
from headrace.testing.fake_launcher import fails_after, ready_after
from headrace.tools.cli.deploy import deploy
from headrace.tools.cli.group import UserFailed
from headrace.tools.cli.invoke import explained_errors
from headrace.tools.cli.platform_client import Platform as Client
from headrace.tools.cli.removal import rm
from headrace.tools.cli.status import status
from tests.platform.control.support import Platform, running_platform

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # a command's clients live as long as its process

DUMB = ("--image", "huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6")


@dataclass(frozen=True)
class Result:
    """The exit code and output of a command."""

    exit_code: int
    output: str


@dataclass(frozen=True)
class Shell:
    """Runs commands in the process of the server and captures their output."""

    platform: Platform
    capture: pytest.CaptureFixture[str]

    def __call__(self, command: click.Command, *arguments: str) -> Result:
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            command.main([*arguments, "--url", self.platform.url], prog_name="headrace")
        said = self.capture.readouterr()
        return Result(int(ended.value.code or 0), said.out + said.err)


@pytest.fixture
def platform(capsys: pytest.CaptureFixture[str]) -> Iterator[Platform]:
    """Run a platform that stops before pytest closes the stream that it logs to."""
    with running_platform() as made:
        yield made


@pytest.fixture
def run(platform: Platform, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(platform, capsys)


def names(platform: Platform, kind: Kind) -> list[str]:
    return [record.name for record in platform.store.list(kind)]


def test_components_share_an_endpoint_that_is_made_for_the_first(platform: Platform, run: Shell) -> None:
    done = run(deploy, "smollm2", "--component-of", "host", "--copies", "2", "--cpus", "0.5", *DUMB)
    assert done.exit_code == 0, done.output
    assert "smollm2 is in service on host" in done.output
    assert "of 2 copies ready" in done.output
    again = run(deploy, "smollm2", "--name", "other", "--component-of", "host", "--memory-mb", "256", *DUMB)
    assert again.exit_code == 0, again.output
    assert names(platform, ENDPOINT) == ["host"]
    client = platform.client("sagemaker")
    found = client.describe_inference_component(InferenceComponentName="smollm2")
    need = {"NumberOfCpuCoresRequired": 0.5, "MinMemoryRequiredInMb": 1024}
    assert found["Specification"]["ComputeResourceRequirements"] == need
    assert found["RuntimeConfig"]["CurrentCopyCount"] == 2
    gone = run(rm, "host", "smollm2", "other")
    assert gone.exit_code == 0, gone.output
    kinds = (ENDPOINT, ENDPOINT_CONFIG, MODEL, INFERENCE_COMPONENT, WORKER)
    assert [names(platform, kind) for kind in kinds] == [[]] * 5


def test_an_endpoint_with_components_stays_until_they_are_named_too(platform: Platform, run: Shell) -> None:
    assert run(deploy, "smollm2", "--component-of", "host", "--copies", "0", *DUMB).exit_code == 0
    refused = run(rm, "host")
    assert refused.exit_code == 2
    assert "It has: smollm2." in refused.output
    assert f"`headrace rm smollm2 host --url {platform.url}` deletes them with it." in refused.output
    assert run(rm, "smollm2").exit_code == 0
    assert names(platform, MODEL) == []
    missing = run(rm, "smollm2", "host")
    assert "There is no endpoint or inference component called smollm2." in missing.output
    assert names(platform, ENDPOINT) == []


def test_created_resources_are_deleted_if_the_component_is_refused(platform: Platform, run: Shell) -> None:
    assert run(deploy, "smollm2", *DUMB).exit_code == 0
    refused = run(deploy, "smollm2", "--name", "c", "--component-of", "smollm2", *DUMB)
    assert refused.exit_code == 2
    assert "Inference Components are not supported in this Endpoint" in refused.output
    assert names(platform, MODEL) == ["smollm2"]


def test_a_failed_component_is_reported_with_its_reason(platform: Platform, run: Shell) -> None:
    platform.machine.script = lambda _spec: fails_after(message="The model is torn.")
    done = run(deploy, "smollm2", "--component-of", "host", *DUMB)
    assert done.exit_code == 1
    assert "smollm2 is Failed: " in done.output
    assert "The model is torn." in done.output
    assert run(rm, "smollm2", "host").exit_code == 0


def test_the_wait_for_all_ends_with_the_reason_of_a_failed_endpoint(
    platform: Platform, run: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "health", lambda _self: {"service": "headrace", "status": "ok"})
    assert run(deploy, "smollm2", "--name", "good", *DUMB).exit_code == 0
    assert run(status, "--wait").exit_code == 0
    platform.machine.script = lambda _spec: fails_after(message="The model is torn.")
    assert run(deploy, "smollm2", "--name", "bad", *DUMB).exit_code == 1
    done = run(status, "--wait")
    assert done.exit_code == 1
    assert "bad is Failed: The model is torn.\n" in done.output
    assert f"`headrace logs bad --url {platform.url}` shows the logs of its workers." in done.output


def test_an_endpoint_that_hosts_components_is_not_invoked_itself(platform: Platform, run: Shell) -> None:
    assert run(deploy, "smollm2", "--component-of", "host", *DUMB).exit_code == 0
    client = Client(url=platform.url, region="us-east-1", access_key="a", secret_key="s")
    error = ClientError({"Error": {"Code": "ValidationError", "Message": "AWS's"}}, "InvokeEndpoint")
    for name, variant, expected in (
        ("host", None, "The models of host are inference components. Invoke one of them: smollm2."),
        ("host", "Blue", "host has no variant Blue. It has: AllTraffic."),
        ("none", None, "There is no endpoint or inference component called none."),
    ):
        with pytest.raises(UserFailed, match=expected), explained_errors(client, name, variant):
            raise error
    with pytest.raises(ClientError, match="AWS's"), explained_errors(client, "smollm2", None):
        raise error


def test_a_relative_path_that_does_not_exist_is_refused_before_anything_is_created(headrace) -> None:
    refused = headrace("deploy", "./no-such-model", "--url", "http://127.0.0.1:9")
    assert refused.exit_code == 2
    assert "MODEL is ./no-such-model; expected a file or folder that exists" in refused.stderr


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (("--instance-type", "g5.xlarge"), "Did you mean ml.g5.xlarge or "),
        (("--instance-type", "large"), "Expected one such as ml.c6i.xlarge"),
        (("--name", "my_model"), "--name is 'my_model'; expected up to 63 letters"),
        (("--name", "a" * 64), "expected up to 63 letters"),
    ],
)
def test_an_invalid_option_is_one_sentence_without_a_platform(headrace, option: tuple[str, str], reason: str) -> None:
    refused = headrace("deploy", "smollm2", *option, "--url", "http://127.0.0.1:9")
    assert refused.exit_code == 2
    assert reason in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("option", [("--copies", "2"), ("--cpus", "1"), ("--memory-mb", "512")])
def test_copy_options_require_a_component(headrace, option: tuple[str, str]) -> None:
    refused = headrace("deploy", "smollm2", *option)
    assert refused.exit_code == 2
    assert "Add --component-of ENDPOINT" in refused.stderr


def served_model(platform: Platform, name: str) -> str:
    client = platform.client("sagemaker")
    config = client.describe_endpoint(EndpointName=name)["EndpointConfigName"]
    (variant,) = client.describe_endpoint_config(EndpointConfigName=config)["ProductionVariants"]
    container = client.describe_model(ModelName=variant["ModelName"])["PrimaryContainer"]
    return container["Environment"]["HF_MODEL_ID"]


def test_an_endpoint_is_updated_only_if_asked_and_leaves_nothing_unused(platform: Platform, run: Shell) -> None:
    assert run(deploy, "smollm2", *DUMB).exit_code == 0
    refused = run(deploy, "smollm2", *DUMB)
    assert refused.exit_code == 2
    assert "There is an endpoint called smollm2 already (InService)" in refused.output
    assert all(way in refused.output for way in ("--update", "`headrace rm smollm2`", "--name"))
    updated = run(deploy, "other/model", "--name", "smollm2", "--update", *DUMB)
    assert updated.exit_code == 0, updated.output
    assert served_model(platform, "smollm2") == "other/model"
    platform.machine.script = lambda _spec: fails_after(message="The model is torn.")
    failed = run(deploy, "torn/model", "--name", "smollm2", "--update", *DUMB)
    assert failed.exit_code == 1
    assert "smollm2 is not updated" in failed.output
    assert served_model(platform, "smollm2") == "other/model"
    assert len(names(platform, MODEL)) == len(names(platform, ENDPOINT_CONFIG)) == 1
    assert run(rm, "smollm2").exit_code == 0
    assert [names(platform, kind) for kind in (ENDPOINT, ENDPOINT_CONFIG, MODEL, WORKER)] == [[]] * 4


def test_what_a_failed_or_deleted_endpoint_left_behind_is_not_in_the_way(platform: Platform, run: Shell) -> None:
    platform.machine.script = lambda _spec: fails_after(message="The model is torn.")
    failed = run(deploy, "smollm2", *DUMB)
    assert failed.exit_code == 1
    assert "The model is torn." in failed.output
    platform.machine.script = lambda _spec: ready_after()
    again = run(deploy, "smollm2", *DUMB)
    assert again.exit_code == 0, again.output
    assert "Replacing smollm2, which failed." in again.output
    client = platform.client("sagemaker")
    client.delete_endpoint(EndpointName="smollm2")
    assert run(deploy, "smollm2", "--update", *DUMB).exit_code == 0


def test_a_component_is_not_deployed_twice(platform: Platform, run: Shell) -> None:
    assert run(deploy, "smollm2", "--component-of", "host", *DUMB).exit_code == 0
    refused = run(deploy, "smollm2", "--component-of", "host", *DUMB)
    assert refused.exit_code == 2
    assert "There is an inference component called smollm2 already (InService)" in refused.output
    assert "--update" not in refused.output
    assert names(platform, MODEL) == ["smollm2"]


def test_a_name_that_is_no_model_is_refused_before_anything_is_created(headrace) -> None:
    refused = headrace("deploy", "smolm2", "--url", "http://127.0.0.1:9")
    assert refused.exit_code == 2
    assert "There is no model 'smolm2'" in refused.stderr
    assert "Did you mean smollm2?" in refused.stderr
