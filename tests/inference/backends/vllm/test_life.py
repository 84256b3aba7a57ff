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

import pytest

from tests import plain_http
from tests.inference.backends.vllm.support import (
    FLAGS,
    Process,
    files_of,
    processes_of,
    serve_vllm,
    vllm_environment,
    vllm_processes_of,
    vllm_python,
    wait_until_gone,
)
from tests.parity.checkpoints import write_checkpoint
from tests.waiting import WAIT_S

pytestmark = pytest.mark.timeout(1200)

ARGUMENTS = (*FLAGS, "--max-model-len", "128")
TWO_RANKS = ("--tensor-parallel-size", "2")
HAS_SHARED_MEMORY = "avx512f" in Path("/proc/cpuinfo").read_text()
"""True on a CPU on which ranks of vLLM exchange tensors in shared memory."""
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


def num_workers(processes: dict[int, Process]) -> int:
    return sum("Worker" in process.name for process in processes.values())


def num_shared(files: set[Path]) -> int:
    return sum(path.name.startswith("vllm_dist_") for path in files)


def is_loading(server: int) -> bool:
    """Tell whether both ranks have begun and share memory, if they do on this CPU; the model is not loaded yet."""
    children = vllm_processes_of(server)
    return num_workers(children) == 2 and (num_shared(files_of(children)) > 0 or not HAS_SHARED_MEMORY)


def test_a_killed_engine_process_ends_requests_and_takes_both_ranks_with_it(tiny: Path, tmp_path: Path) -> None:
    server = serve_vllm(tiny, tmp_path, *ARGUMENTS, *TWO_RANKS)
    children, every = vllm_processes_of(server.process.pid), processes_of(server.process.pid)
    files = files_of(children)
    assert num_workers(children) == 2
    assert num_shared(files) == (2 if HAS_SHARED_MEMORY else 0)
    answer = plain_http.post(f"{server.url}/generate", json=BODY, timeout=WAIT_S)
    assert answer.json()["details"]["generated_tokens"] == 4
    (engine,) = (process for process in children.values() if "EngineCor" in process.name)
    os.kill(engine.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(plain_http.post, f"{server.url}/generate", json=BODY, timeout=WAIT_S)
        wait_for(lambda: bool(RUNNING.search(plain_http.get(f"{server.url}/metrics", timeout=WAIT_S).text)))
        os.kill(engine.pid, signal.SIGKILL)
        answer = asked.result()
    assert "a process of vLLM ended" in answer.text
    assert answer.status_code >= 500 or answer.status_code == 424
    wait_until_gone(children)
    assert plain_http.get(f"{server.url}/ping", timeout=WAIT_S).status_code == 503
    refused = plain_http.post(f"{server.url}/generate", json=BODY, timeout=WAIT_S)
    assert refused.status_code == 503
    assert "a process of vLLM ended" in refused.text
    assert server.stop() == 0
    wait_until_gone(every)
    assert files
    assert not [path for path in files if path.exists()]


def test_a_server_that_is_killed_while_vllm_starts_leaves_no_process_and_no_file(tiny: Path, tmp_path: Path) -> None:
    """Its processes are stopped, as if each was in the middle of a step, so that they cannot end by themselves."""
    with (tmp_path / "log").open("wb") as log:
        command = [vllm_python(), "-m", "headrace", *serve_arguments(tiny, *TWO_RANKS)]
        server = subprocess.Popen(command, env=vllm_environment(tmp_path), stdout=log, stderr=log)
    wait_for(lambda: is_loading(server.pid))
    every = processes_of(server.pid)
    files = files_of(every)
    for process in vllm_processes_of(server.pid).values():
        os.kill(process.pid, signal.SIGSTOP)
    server.kill()
    server.wait()
    wait_until_gone(every)
    assert files
    assert not [path for path in files if path.exists()]


def test_an_unknown_architecture_and_too_little_memory_stop_the_start_with_a_sentence(
    tiny: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    config = json.loads((tiny / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "architectures": ["MadeUpForCausalLM"]}))
    unknown, too_little = failures(tmp_path, serve_arguments(broken), serve_arguments(tiny, "--kv-cache-bytes", "1KiB"))
    assert "MadeUpForCausalLM" in unknown
    assert "Lower max_model_len or kv_cache_bytes" in too_little


def serve_arguments(model: Path, *flags: str) -> list[str]:
    return ["serve", str(model), "--port", "0", *ARGUMENTS, *flags]


ONE_AFTER_ANOTHER = """
import json, sys
from headrace.tools.cli.main import cli
for arguments in json.loads(sys.argv[1]):
    try:
        cli(arguments, prog_name="headrace")
    except SystemExit as end:
        assert end.code == 2, end.code
"""
"""Runs commands that fail in one process, which imports vLLM once."""


def failures(folder: Path, *commands: list[str]) -> list[str]:
    """Start servers that cannot run; return their errors."""
    program = [vllm_python(), "-c", ONE_AFTER_ANOTHER, json.dumps(commands)]
    ended = subprocess.run(program, env=vllm_environment(folder), capture_output=True, text=True, timeout=3 * WAIT_S)
    assert ended.returncode == 0, ended.stderr
    return [line for line in ended.stderr.splitlines() if line.startswith("Error: ")]
