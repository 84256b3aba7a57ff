"""The processes of vLLM: whichever is killed, at any moment, requests end with an error and no process is left."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from headrace.backends.vllm.environment import SERVER_VARIABLE
from tests.backends.vllm.support import (
    FLAGS,
    Process,
    processes_of,
    serve_vllm,
    vllm_environment,
    vllm_python,
    wait_until_gone,
)
from tests.parity.checkpoints import write_checkpoint
from tests.waiting import WAIT_S

pytestmark = pytest.mark.timeout(1200)

ARGUMENTS = (*FLAGS, "--max-model-len", "128")
RUNNING = re.compile(r"^headrace_running_sequences\S* 1(\.0)?$", re.MULTILINE)
BODY = {"inputs": "ab", "parameters": {"max_new_tokens": 4, "details": True}}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint("llama", folder)
    return folder


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def file_of(process: Process, name: str) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/{name}").read_bytes()
    except OSError:
        return b""


def shared_memory(process: Process) -> list[Path]:
    """The segments of Python's shared memory that a process has open."""
    fields = [line.split() for line in file_of(process, "maps").decode().splitlines()]
    paths = [Path(line[5]) for line in fields if len(line) == 6 and line[5].startswith("/dev/shm/psm_")]
    return [path for path in paths if path.exists()]


def marked(server: int) -> dict[int, Process]:
    """The processes of vLLM, which the watchdog finds."""
    mark = f"{SERVER_VARIABLE}=".encode()
    return {pid: process for pid, process in processes_of(server).items() if mark in file_of(process, "environ")}


def is_importing(server: int) -> bool:
    """Tell whether the engine process has begun and has no title yet."""
    return any(b"spawn_main" in file_of(process, "cmdline") for process in marked(server).values())


def kill_beside_stopped(server: subprocess.Popen[bytes]) -> None:
    """Kill a server whose processes cannot end by themselves, as if each was in the middle of an import or a step."""
    every = processes_of(server.pid)
    shared = {path for process in every.values() for path in shared_memory(process)}
    for process in marked(server.pid).values():
        os.kill(process.pid, signal.SIGSTOP)
    server.kill()
    server.wait()
    wait_until_gone(every)
    assert not [path for path in shared if path.exists()]


@pytest.mark.parametrize("victim", ["EngineCor", "Worker"])
def test_a_killed_process_ends_requests_and_takes_the_others_with_it(tiny: Path, tmp_path: Path, victim: str) -> None:
    server = serve_vllm(tiny, tmp_path, *ARGUMENTS)
    children = marked(server.process.pid)
    (killed,) = (process for process in children.values() if victim in process.name)
    os.kill(killed.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{server.url}/generate", json=BODY, timeout=WAIT_S)
        wait_for(lambda: bool(RUNNING.search(httpx.get(f"{server.url}/metrics", timeout=WAIT_S).text)))
        os.kill(killed.pid, signal.SIGKILL)
        answer = asked.result()
    assert "a process of vLLM ended" in answer.text
    assert answer.status_code >= 500 or answer.status_code == 424
    wait_until_gone(children)
    assert httpx.get(f"{server.url}/ping", timeout=WAIT_S).status_code == 503
    refused = httpx.post(f"{server.url}/generate", json=BODY, timeout=WAIT_S)
    assert refused.status_code == 503
    assert "a process of vLLM ended" in refused.text
    assert server.stop() == 0


def test_two_ranks_answer_and_end_with_a_killed_server(tiny: Path, tmp_path: Path) -> None:
    server = serve_vllm(tiny, tmp_path, *ARGUMENTS, "--tensor-parallel-size", "2")
    assert sum("Worker" in process.name for process in marked(server.process.pid).values()) == 2
    answer = httpx.post(f"{server.url}/generate", json=BODY, timeout=WAIT_S)
    assert answer.json()["details"]["generated_tokens"] == 4
    kill_beside_stopped(server.process)


def test_a_server_that_is_killed_while_vllm_starts_leaves_no_process(tiny: Path, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command(tiny), env=vllm_environment(tmp_path), stdout=log, stderr=log)
    wait_for(lambda: is_importing(server.pid))
    kill_beside_stopped(server)


def test_an_unknown_architecture_and_too_little_memory_stop_the_start_with_a_sentence(
    tiny: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    config = json.loads((tiny / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "architectures": ["MadeUpForCausalLM"]}))
    assert "MadeUpForCausalLM" in failure(broken, tmp_path)
    assert "Lower max_model_len or kv_cache_bytes" in failure(tiny, tmp_path, "--kv-cache-bytes", "1KiB")


def command(model: Path, *flags: str) -> list[str]:
    return [vllm_python(), "-m", "headrace", "serve", str(model), "--port", "0", *ARGUMENTS, *flags]


def failure(model: Path, folder: Path, *flags: str) -> str:
    """Start a server that cannot run; return its error."""
    ended = subprocess.run(
        command(model, *flags), env=vllm_environment(folder), capture_output=True, text=True, timeout=WAIT_S
    )
    assert ended.returncode == 2, ended.stderr
    (error,) = (line for line in ended.stderr.splitlines() if line.startswith("Error: "))
    return error
