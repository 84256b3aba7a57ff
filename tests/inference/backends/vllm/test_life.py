"""
Servers whose vLLM does not come to an answer: it is killed while it starts, or cannot start.

`tests/platform/host/test_vllm.py` kills and stops the processes of one that runs.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.inference.backends.vllm.support import (
    FLAGS,
    HAS_SHARED_MEMORY,
    Process,
    files_of,
    processes_of,
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
