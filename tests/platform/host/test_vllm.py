"""
An endpoint of an article on the real vLLM, whose processes are killed and stopped: each is replaced and leaves nothing.

To start vLLM takes 30 s of CPU time, so one test goes through the life of an endpoint.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from tests import plain_http
from tests.inference.backends.vllm.support import (
    HAS_SHARED_MEMORY,
    Process,
    files_of,
    process_at,
    vllm_environment,
    vllm_processes_of,
    vllm_python,
    wait_until_gone,
)
from tests.parity.checkpoints import write_checkpoint
from tests.waiting import WAIT_S

from .conftest import shell_for
from .endpoints import PROMPT
from .running import Running, until, up
from .sdk_scripts import EXAMPLES, PIECES, check_all, cold_python, started

pytestmark = pytest.mark.timeout(1800)

EXAMPLE = EXAMPLES / "lmi.py"
"""It names vLLM in `serving.properties`; another article does in the environment (`test_container_backends`)."""
ENVIRONMENT = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "20", "HEADRACE_TENSOR_PARALLEL_SIZE": "2"}
CHANGES = {
    "option.rolling_batch=auto": "option.rolling_batch=vllm\noption.enforce_eager=true",  # to compile takes minutes
    "name=NAME)\nmodel.deploy": "name=NAME, env=ENVIRONMENT)\nmodel.deploy",
    "NAME = sagemaker": f"ENVIRONMENT = {ENVIRONMENT}\nNAME = sagemaker",
    "num_requests < 8": "num_requests < 2",
    "client.delete_": "# client.delete_",
    "boto3.resource(": "# boto3.resource(",
}
RUNNING = "headrace_running_sequences"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A platform in the environment of vLLM, so that its workers have it too."""
    folder, programs = tmp_path_factory.mktemp("vllm"), Path(sys.executable).parent
    env = {**vllm_environment(folder), "PATH": f"{programs}:{os.environ['PATH']}"}
    running = up(folder / "data", env=env, program=(vllm_python(), "-m", "headrace"))
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """
    A small network with room for the prompts of the article.

    What vLLM answers with the real model is compared in `tests/inference/backends/vllm/test_server.py`.
    """
    folder = tmp_path / "tiny"
    write_checkpoint("llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    return folder


def test_an_endpoint_of_an_article_outlives_the_processes_of_vllm(
    platform: Running, tiny: Path, tmp_path: Path
) -> None:
    name = deployed_by_the_article(platform, tiny, tmp_path)
    first = vllm_processes_of(platform.process.pid)
    files = files_of(first)
    assert len(ranks(first)) == 2
    assert sum(path.name.startswith("vllm_dist_") for path in files) == (2 if HAS_SHARED_MEMORY else 0)

    fails_while_a_rank_is_killed(platform, name, ranks(first)[1])
    wait_until_gone(first)
    until(lambda: answers(platform, name), "another worker answers", timeout_s=3 * WAIT_S)
    second = vllm_processes_of(platform.process.pid)
    files |= files_of(second)
    server = server_of(second)
    os.kill(engine_of(second).pid, signal.SIGSTOP)
    with pytest.raises(ClientError, match="vLLM has not ended a step within 20 s"):
        ask(platform, name)
    wait_until_gone({**second, server.pid: server})

    platform.client("sagemaker").delete_endpoint(EndpointName=name)
    until(lambda: not vllm_processes_of(platform.process.pid), "vLLM has ended")
    # `tests/inference/backends/vllm/test_life.py` looks at Python's own shared memory too. Python's tracker removes it,
    # which the platform kills with the worker's session, and sometimes before it has done so.
    assert [path for path in files if not path.match("psm_*")]
    assert not [path for path in files if path.exists() and not path.match("psm_*")]


def deployed_by_the_article(platform: Running, model: Path, folder: Path) -> str:
    """Run the example but for its last lines, which delete the endpoint; return the name of the endpoint."""
    code = EXAMPLE.read_text()
    for text, other in CHANGES.items():
        assert text in code
        code = code.replace(text, other)
    copy = folder / EXAMPLE.name
    copy.write_text(code)
    script = started(cold_python(), copy, shell_for(platform), model, folder / "lmi")
    check_all({"lmi": script}, PIECES, platform)
    ((name,),) = [[found["EndpointName"]] for found in platform.client("sagemaker").list_endpoints()["Endpoints"]]
    events = platform.client("logs").filter_log_events(logGroupName=f"/aws/sagemaker/Endpoints/{name}")["events"]
    assert any('"backend": "vllm"' in event["message"] for event in events), events
    return str(name)


def fails_while_a_rank_is_killed(platform: Running, name: str, rank: Process) -> None:
    """Kill a rank under a request that it holds up: the request ends with an error."""
    (path,) = platform.folder.glob("workers/*/handle.json")
    url = json.loads(path.read_text())["url"]

    def is_running() -> bool:
        text = plain_http.get(f"{url}/metrics", timeout=WAIT_S).text
        lines = [line for line in text.splitlines() if line.startswith(RUNNING)]
        return any(float(line.rpartition(" ")[2]) == 1 for line in lines)

    os.kill(rank.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, platform, name)
        until(is_running, "the request is in a step")
        os.kill(rank.pid, signal.SIGKILL)
        with pytest.raises(ClientError, match="a process of vLLM ended"):
            asked.result()


def ask(platform: Running, name: str) -> bytes:
    """Return the lines of an answer."""
    response = platform.client("sagemaker-runtime").invoke_endpoint(
        EndpointName=name, Body=json.dumps(PROMPT), ContentType="application/json"
    )
    with response["Body"] as stream:
        return bytes(stream.read())


def answers(platform: Running, name: str) -> bool:
    """Ask once; False also if vLLM starts for longer than the client waits, as on a busy machine."""
    try:
        return bool(ask(platform, name))
    except (ClientError, ReadTimeoutError):
        return False


def ranks(processes: dict[int, Process]) -> list[Process]:
    return [process for process in processes.values() if "Worker" in process.name]


def engine_of(processes: dict[int, Process]) -> Process:
    (found,) = (process for process in processes.values() if "EngineCor" in process.name)
    return found


def server_of(processes: dict[int, Process]) -> Process:
    server = process_at(engine_of(processes).parent)
    assert server is not None
    return server
