"""The SageMaker SDK and the AWS CLI as users call them, in a shell that `headrace env` has pointed at a platform."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.conftest import headrace_command
from tests.waiting import WAIT_S

from .running import Running, until
from .sdk_scripts import (
    EXAMPLES,
    PIECES,
    RUN_ELSEWHERE,
    Command,
    check_all,
    check_session_helpers,
    printed_commands,
    started,
)

pytestmark = pytest.mark.model


def test_the_tutorials_have_the_commands_of_most_scripts() -> None:
    without = {name for name in PIECES if not printed_commands(f"{name}.py")}
    assert without == {"account", "batch_transform", "embeddings", "pipeline", "registry", "stack"}


@pytest.mark.timeout(1200)
def test_the_sdk_examples_run_in_parallel_and_leave_nothing(
    platform: Running, shell: dict[str, str], sdk2: Command, smollm2_path: Path, minilm_path: Path, tmp_path: Path
) -> None:
    scripts = sorted(path for path in EXAMPLES.glob("*.py") if path.stem not in RUN_ELSEWHERE)
    assert {path.stem for path in scripts} == set(PIECES)
    processes = {
        path.stem: started(sdk2, path, shell, smollm2_path, tmp_path / path.stem)
        for path in scripts
        if path.stem != "embeddings"
    }
    embeddings = started(sdk2, EXAMPLES / "embeddings.py", shell, minilm_path, tmp_path / "embeddings", alias="minilm")
    processes["embeddings"] = embeddings
    check_all(processes, PIECES, platform)
    client = platform.client("sagemaker")
    for prefix in ("smollm2-", "minilm-"):
        until(lambda name=prefix: not client.list_endpoints(NameContains=name)["Endpoints"], "endpoints were deleted")
        assert not client.list_models(NameContains=prefix)["Models"]
        assert not client.list_endpoint_configs(NameContains=prefix)["EndpointConfigs"]


@pytest.mark.timeout(600)
def test_no_session_helper_of_the_sdk_2_reaches_aws(shell: dict[str, str], sdk2: Command) -> None:
    check_session_helpers(sdk2, shell, "sagemaker.session", "sagemaker_core.helper.session_helper")


def aws(shell: Mapping[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "awscli", *arguments]
    done = subprocess.run(command, env=dict(shell), capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_aws_command_line_lists_describes_invokes_and_copies(
    shell: dict[str, str], endpoint: str, tmp_path: Path
) -> None:
    listed = json.loads(aws(shell, "sagemaker", "list-endpoints", "--name-contains", endpoint))
    assert [item["EndpointName"] for item in listed["Endpoints"]] == [endpoint]
    described = json.loads(aws(shell, "sagemaker", "describe-endpoint", "--endpoint-name", endpoint))
    assert described["EndpointStatus"] == "InService"
    body, answer = tmp_path / "body.json", tmp_path / "answer.json"
    body.write_text(json.dumps({"inputs": "The sea is", "parameters": {"max_new_tokens": 4}}))
    aws(
        shell,
        "sagemaker-runtime",
        "invoke-endpoint",
        *("--endpoint-name", endpoint, "--body", f"fileb://{body}", "--content-type", "application/json", str(answer)),
    )
    assert json.loads(answer.read_text())[0]["generated_text"]
    aws(shell, "s3", "mb", "s3://from-the-cli")
    aws(shell, "s3", "cp", os.fspath(body), "s3://from-the-cli/a/body.json")
    assert "a/body.json" in aws(shell, "s3", "ls", "s3://from-the-cli", "--recursive")
    aws(shell, "s3", "rb", "--force", "s3://from-the-cli")


def test_unset_restores_the_environment(platform: Running, shell: dict[str, str]) -> None:
    assert shell["AWS_ENDPOINT_URL"] == platform.url
    script = f'eval "$({headrace_command()} env --unset)"; env'
    done = subprocess.run(["bash", "-c", script], env=shell, capture_output=True, text=True, check=True)
    assert "AWS_ENDPOINT_URL" not in done.stdout
    assert "headrace" not in [line.partition("=")[2] for line in done.stdout.splitlines()]
