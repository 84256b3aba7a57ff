"""Scripts that use the SageMaker SDKs: how the tests run them, and what the examples print."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.pages import DOCS, steps_of, store_smollm2

from .running import Running

SDK_BUCKET = "sagemaker-us-east-1-000000000000"

EXAMPLES = Path(__file__).parent.parent.parent.parent / "examples" / "sagemaker"
RUN_ELSEWHERE = ("line_iterator", "components", "inferentia2", "llama3_autoscaling", "multi_model")
"""A helper, and what `test_sdks_components`, `test_inferentia2` and `test_multi_model` run."""
PATIENCE_S = 1100
SESSION_HELPERS = Path(__file__).parent / "session_helpers.py"
PIECES = {
    "tgi": ("at once:", "streamed:"),
    "lmi": ("the last ended by", "mean probability of a token: 0."),
    "lmi_boto3": ("streamed: ",),
    "lmi_environment": ("at once:", "streamed:"),
    "account": ("acts as: arn:aws:sts::", "images:  1.0", "notified: Completed s3://", "'lines': '", "boards:   1"),
    "stack": ("answer:   ", "changed: Target"),
    "embeddings": ("dimensions: 384", "food and bread: 0.7"),
    "registry": (
        "version:  arn:aws:sagemaker:us-east-1:000000000000:model-package/smollm2-registry-",
        "answer:   The sea",
    ),
    "pipeline": ("answer:   The sea is", "failed:   Received server error (500) from container-1"),
    "batch_transform": ("4 answers to 4 prompts, the first: '",),
    "torchserve": ("Today the weather is really nice and I am planning on ",),
}

WARM_PYTHON = Path(__file__).parent / "warm_python.py"
SDK_2 = ("sagemaker", "sagemaker.huggingface", "sagemaker.jumpstart.model")
SDK_3 = ("sagemaker.core.resources", "sagemaker.core.helper.session_helper", "sagemaker.serve")
Command = Sequence[str | Path]
"""The command before a script and its arguments."""


def cold_python(python: str = sys.executable) -> Command:
    """Return the command of a Python that imports what a script needs."""
    return python, "-P", WARM_PYTHON, "once"


@contextmanager
def warm_python(python: str, modules: Sequence[str], shell: Mapping[str, str], folder: Path) -> Iterator[Command]:
    """Yield the command of forks of a Python that has imported these modules once, in the environment of a shell."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "python"))
        listener.listen()
        number = listener.fileno()
        server = subprocess.Popen(
            [python, "-P", WARM_PYTHON, "serve", str(number), *modules],
            env=dict(shell),
            stdin=subprocess.PIPE,
            pass_fds=[number],
        )
    with server:  # ends with its stdin
        yield python, "-I", "-S", WARM_PYTHON, "run", folder / "python"


def started(
    python: Command, script: Path, shell: Mapping[str, str], model: Path, folder: Path, *, alias: str = "smollm2"
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
        command, env = [*python, copy, model], dict(shell)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, cwd=folder, **pipes)


def printed_commands(script: str) -> str | None:
    """Return the block of a tutorial that runs a script, None if no tutorial has one to run."""
    steps = (step for page in sorted((DOCS / "tutorials").glob("*.md")) for step in steps_of(page))
    return next((step.code for step in steps if f"python {script}" in step.code), None)


def as_a_reader(python: Command, folder: Path) -> dict[str, str]:
    """Return the environment of a reader of the tutorials: `python` is impatient, the cache is in the folder."""
    programs = folder / "bin"
    programs.mkdir()
    shim = programs / "python"
    shim.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, python))} "$@"\n')
    shim.chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HEADRACE_HOME": str(folder / "home")}


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


def check_session_helpers(python: Command, shell: Mapping[str, str], *modules: str) -> None:
    """The session helpers of an SDK are answered here, and so is each service that it has clients for, by an error."""
    command = [*python, SESSION_HELPERS, *modules]
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
