"""Endpoints on the real vLLM: the examples of the Phi-3 and the LMI 0.26 article, and killed processes."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.inference.backends.vllm.support import (
    Process,
    process_at,
    vllm_environment,
    vllm_processes_of,
    vllm_python,
    wait_until_gone,
)
from tests.parity.checkpoints import write_checkpoint

from .conftest import shell_for
from .running import Running, until, up
from .test_end_to_end import ECR, answered, delete_endpoint, invoke, make_endpoint
from .test_sdks import EXAMPLES, PIECES, check_all, started

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]

ARTICLES = ("lmi_environment", "lmi")
"""`OPTION_ROLLING_BATCH=vllm` in the environment, and `option.rolling_batch` in `serving.properties`."""


LMI = f"{ECR}/djl-inference:0.28.0-lmi10.0.0-cu124"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A platform in the environment of vLLM, so that its workers have it too."""
    folder, programs = tmp_path_factory.mktemp("vllm"), Path(sys.executable).parent
    env = {**vllm_environment(folder), "PATH": f"{programs}:{os.environ['PATH']}"}
    running = up(folder / "data", env=env, program=(vllm_python(), "-m", "headrace"))
    yield running
    assert running.stop() == 0, running.log()


def test_the_examples_of_the_articles_are_served_by_vllm(
    platform: Running, smollm2_folder: Path, tmp_path: Path
) -> None:
    shell = shell_for(platform)
    processes = {
        name: started(sys.executable, quick_copy(name, tmp_path), shell, smollm2_folder, tmp_path / name)
        for name in ARTICLES
    }
    check_all(processes, PIECES, platform)
    client = platform.client("logs")
    groups = [group["logGroupName"] for group in client.describe_log_groups()["logGroups"]]
    groups = [name for name in groups if name.startswith("/aws/sagemaker/Endpoints/smollm2-")]
    logs = ["".join(e["message"] for e in client.filter_log_events(logGroupName=name)["events"]) for name in groups]
    assert sum('"backend": "vllm"' in log for log in logs) == len(ARTICLES), logs
    until(lambda: not vllm_processes_of(platform.process.pid), "vLLM has ended")


def test_a_worker_with_a_killed_or_a_hanging_process_is_replaced_and_leaves_none(
    platform: Running, tmp_path: Path
) -> None:
    write_checkpoint("llama", tmp_path / "tiny")
    settings = {
        "OPTION_ROLLING_BATCH": "vllm",
        "OPTION_ENFORCE_EAGER": "true",
        "OPTION_MAX_MODEL_LEN": "64",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "20",
    }
    container = {"Image": LMI, "Environment": {"HF_MODEL_ID": str(tmp_path / "tiny"), **settings}}
    make_endpoint(platform, "killed", container)
    platform.until_in_service("killed")
    first = vllm_processes_of(platform.process.pid)
    os.kill(named(first, "Worker").pid, signal.SIGKILL)
    wait_until_gone(first)
    until(lambda: answered(platform, "killed"), "another worker answers")

    second = vllm_processes_of(platform.process.pid)
    engine = named(second, "EngineCor")
    server = process_at(engine.parent)
    assert server is not None
    os.kill(engine.pid, signal.SIGSTOP)
    with pytest.raises(ClientError, match="vLLM has not ended a step within 20 s"):
        invoke(platform, "killed")
    wait_until_gone({**second, server.pid: server})
    delete_endpoint(platform, "killed")
    until(lambda: not vllm_processes_of(platform.process.pid), "vLLM has ended")


def named(processes: dict[int, Process], name: str) -> Process:
    (found,) = (process for process in processes.values() if name in process.name)
    return found


def quick_copy(name: str, folder: Path) -> Path:
    """Copy an example, to ask for vLLM by name and not to compile, which takes minutes on a CPU."""
    code = (EXAMPLES / f"{name}.py").read_text()
    for text, other in (
        ("option.rolling_batch=auto", "option.rolling_batch=vllm\noption.enforce_eager=true"),
        ('"OPTION_ROLLING_BATCH": "vllm",', '"OPTION_ROLLING_BATCH": "vllm", "OPTION_ENFORCE_EAGER": "true",'),
    ):
        code = code.replace(text, other)
    assert "enforce_eager" in code.lower()
    copy = folder / f"{name}.py"
    copy.write_text(code)
    return copy
