"""The processes of vLLM end with a server that is killed, at any moment of its life."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
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


def test_a_server_that_is_killed_while_vllm_starts_leaves_no_process(tiny: Path, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command(tiny), env=vllm_environment(tmp_path), stdout=log, stderr=log)
    wait_for(lambda: is_importing(server.pid))
    kill_beside_stopped(server)


def test_a_server_that_is_killed_while_it_serves_leaves_no_process(tiny: Path, tmp_path: Path) -> None:
    server = serve_vllm(tiny, tmp_path, *ARGUMENTS)
    answer = httpx.post(f"{server.url}/generate", json=BODY, timeout=WAIT_S)
    assert answer.json()["details"]["generated_tokens"] == 4
    kinds = {process.name.partition(":")[0] for process in marked(server.process.pid).values()}
    assert "VLLM" in kinds
    kill_beside_stopped(server.process)


def command(model: Path) -> list[str]:
    return [vllm_python(), "-m", "headrace", "serve", str(model), "--port", "0", *ARGUMENTS]
