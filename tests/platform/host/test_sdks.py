"""The SageMaker SDK and the AWS CLI as users call them, in a shell that `headrace env` has pointed at a platform."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import headrace_command
from tests.pages import DOCS, steps_of, store_smollm2
from tests.waiting import WAIT_S

from .conftest import SDK_BUCKET
from .running import Running, until

pytestmark = pytest.mark.model

EXAMPLES = Path(__file__).parent.parent.parent.parent / "examples" / "sagemaker"
RUN_ELSEWHERE = ("line_iterator", "components", "inferentia2", "llama3_autoscaling")
"""A helper, and what `test_sdks_components` and `test_inferentia2` run."""
PATIENCE_S = 1100
SESSION_HELPERS = Path(__file__).parent / "session_helpers.py"
PIECES = {
    "tgi": ("at once:", "streamed:"),
    "lmi": ("the last ended by", "mean probability of a token: 0."),
    "lmi_boto3": ("streamed: ",),
    "lmi_environment": ("at once:", "streamed:"),
    "embeddings": ("dimensions: 384", "food and bread: 0.7"),
    "registry": (
        "version:  arn:aws:sagemaker:us-east-1:000000000000:model-package/smollm2-registry-",
        "answer:   The sea",
    ),
    "batch_transform": ("4 answers to 4 prompts, the first: '",),
    "torchserve": ("Today the weather is really nice and I am planning on ",),
}

IMPATIENT = """
import runpy, sys, time
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 1))
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
"""Runs a script as it is, but for its patience: the SDKs sleep for half a minute between two looks at an endpoint."""


def started(
    python: str, script: Path, shell: Mapping[str, str], model: Path, folder: Path, *, alias: str = "smollm2"
) -> subprocess.Popen[str]:
    """The example on the model of this test run instead of the alias, which would be fetched."""
    folder.mkdir()
    code = script.read_text()
    assert alias in code
    for quoted in (f'"HF_MODEL_ID": "{alias}"', f"option.model_id={alias}"):
        code = code.replace(quoted, quoted.replace(alias, str(model)))
    copy = folder / script.name
    copy.write_text(code)
    shutil.copy(EXAMPLES / "line_iterator.py", folder)
    printed = printed_commands(script.name) if script.parent == EXAMPLES else None
    if printed:
        command, env = ["bash", "-euc", printed], {**shell, **as_a_reader(python, folder)}
        if "headrace models pull smollm2" in printed:
            store_smollm2(model, folder / "home")
    else:
        command, env = [python, "-W", "ignore", "-c", IMPATIENT, str(copy), str(model)], dict(shell)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, cwd=folder, **pipes)


def printed_commands(script: str) -> str | None:
    """Return the block of a tutorial that runs a script, None if no tutorial has one to run."""
    steps = (step for page in sorted((DOCS / "tutorials").glob("*.md")) for step in steps_of(page))
    return next((step.code for step in steps if f"python {script}" in step.code), None)


def as_a_reader(python: str, folder: Path) -> dict[str, str]:
    """Return the environment of a reader of the tutorials: `python` is impatient, the cache is in the folder."""
    programs = folder / "bin"
    programs.mkdir()
    shim = programs / "python"
    shim.write_text(f'#!/bin/sh\nexec "{python}" -W ignore -c "$IMPATIENT" "$@"\n')
    shim.chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "IMPATIENT": IMPATIENT, "HEADRACE_HOME": str(folder / "home")}


def check_all(
    processes: Mapping[str, subprocess.Popen[str]], pieces: Mapping[str, Sequence[str]], platform: Running
) -> None:
    """Each script ends well and prints its pieces; where one does not, the others are ended."""
    with ExitStack() as ending:
        for process in processes.values():
            ending.enter_context(process)
            ending.callback(process.kill)
        for name, process in processes.items():
            output, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, f"{name}: {output}{errors[-2000:]}{platform.log()[-2000:]}"
            for piece in pieces[name]:
                assert piece in output, f"{name}: {output}"


def test_the_tutorials_have_the_commands_of_most_scripts() -> None:
    without = {name for name in PIECES if not printed_commands(f"{name}.py")}
    assert without == {"batch_transform", "embeddings", "registry"}


@pytest.mark.timeout(1200)
def test_the_sdk_examples_run_in_parallel_and_leave_nothing(
    platform: Running, shell: dict[str, str], smollm2_path: Path, minilm_path: Path, tmp_path: Path
) -> None:
    scripts = sorted(path for path in EXAMPLES.glob("*.py") if path.stem not in RUN_ELSEWHERE)
    assert {path.stem for path in scripts} == set(PIECES)
    processes = {
        path.stem: started(sys.executable, path, shell, smollm2_path, tmp_path / path.stem)
        for path in scripts
        if path.stem != "embeddings"
    }
    embeddings = started(
        sys.executable, EXAMPLES / "embeddings.py", shell, minilm_path, tmp_path / "embeddings", alias="minilm"
    )
    processes["embeddings"] = embeddings
    check_all(processes, PIECES, platform)
    client = platform.client("sagemaker")
    for prefix in ("smollm2-", "minilm-"):
        until(lambda name=prefix: not client.list_endpoints(NameContains=name)["Endpoints"], "endpoints were deleted")
        assert not client.list_models(NameContains=prefix)["Models"]
        assert not client.list_endpoint_configs(NameContains=prefix)["EndpointConfigs"]


def check_session_helpers(python: str, shell: Mapping[str, str], *modules: str) -> None:
    """The session helpers of an SDK are answered here, and so is each service that it has clients for, by an error."""
    command = [python, "-W", "ignore", str(SESSION_HELPERS), *modules]
    done = subprocess.run(command, env=dict(shell), capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    calls = {found["name"]: found for found in map(json.loads, re.findall(r"^{.*", done.stdout, re.MULTILINE))}
    assert [found for found in calls.values() if found["elsewhere"]] == []
    for module in modules:
        assert calls[f"{module}.get_execution_role"]["result"] == "arn:aws:iam::000000000000:role/HeadraceRole"
        assert calls[f"{module}.default_bucket"]["result"] == SDK_BUCKET
    services = {name.partition(" ")[2]: found["error"] for name, found in calls.items() if name.startswith("service ")}
    assert {"ec2", "ecr", "lambda"} <= services.keys()
    signed_as = {"resourcegroupstaggingapi": "tagging", "bedrock-agentcore-control": "bedrock-agentcore"}
    for service, error in services.items():
        named = signed_as.get(service, service)
        assert re.search(rf": {named}( \w+)? is not supported by Headrace", error), (service, error)
    assert not [found for name, found in calls.items() if not name.startswith("service ") and found["error"]]


@pytest.mark.timeout(600)
def test_no_session_helper_of_the_sdk_2_reaches_aws(shell: dict[str, str]) -> None:
    check_session_helpers(sys.executable, shell, "sagemaker.session", "sagemaker_core.helper.session_helper")


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
