"""`headrace serve` as a process: it starts, reports readiness, stops, and refuses invalid settings in one sentence."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests import plain_http
from tests.e2e.conftest import free_port
from tests.parity.checkpoints import write_checkpoint
from tests.waiting import WAIT_S


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "headrace", "serve", *map(str, args)]


def clean_env(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")} | more


def refused(*args: object, **env: str) -> str:
    done = subprocess.run(
        command(*args), capture_output=True, text=True, env=clean_env(**env), check=False, timeout=WAIT_S
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    return sentence


def test_a_model_that_does_not_exist_is_named_with_the_nearest_one() -> None:
    assert "Did you mean smollm2?" in refused("smolm2", "--port", "0")


def test_a_truncated_file_is_named(tmp_path: Path, smollm2_path: Path) -> None:
    broken = tmp_path / "cut.gguf"
    with smollm2_path.open("rb") as whole:
        broken.write_bytes(whole.read(5_000_000))
    assert "cut.gguf" in refused(broken, "--port", "0")


def test_a_port_in_use_is_reported_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in refused("smollm2", "--port", port)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("smollm2", "--port", "many"), "--port is 'many'"),
        (("smollm2", "--dtype", "w8a9"), "Did you mean w8a8?"),
        (("smollm2", "--host", "0.0.0.0"), "--api-key"),
        ((), "No model was named"),
    ],
)
def test_a_bad_setting_stops_the_start_with_one_sentence(args: tuple, word: str) -> None:
    assert word in refused(*args)


def test_a_bad_environment_variable_is_named() -> None:
    assert "HEADRACE_PROT is not a setting. Did you mean HEADRACE_PORT?" in refused("smollm2", HEADRACE_PROT="1")


@pytest.mark.model
def test_too_little_memory_for_the_cache_is_reported_with_the_sum(smollm2_path: Path) -> None:
    assert "MiB" in refused(smollm2_path, "--port", "0", "--kv-cache-bytes", "1MiB")


@contextmanager
def served(folder: Path, *args: object) -> Iterator[tuple[httpx.Client, Path]]:
    """Start a server; yield a client of it and its log. It must stop by itself after a signal."""
    log, port = folder / "log", free_port()
    with log.open("wb") as file:
        server = subprocess.Popen(
            command(*args, "--port", port), stderr=file, env=clean_env(HEADRACE_HOME=str(folder / "home"))
        )
    try:
        deadline_s = time.monotonic() + WAIT_S
        while not _is_ready(port):
            assert time.monotonic() < deadline_s, log.read_text()
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        with plain_http.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as client:
            yield client, log
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=WAIT_S) == 0
    finally:
        server.kill()
        server.wait()


@pytest.mark.model
def test_a_real_model_is_served_until_a_signal_comes(smollm2_path: Path, tmp_path: Path) -> None:
    with served(tmp_path, smollm2_path, "--max-model-len", 512, "--max-num-seqs", 4) as (client, _):
        body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 3}}
        assert "Paris" in client.post("/generate", json=body).json()["generated_text"]


def test_a_longer_rope_is_logged_shown_and_answers_beyond_the_original_context(tmp_path: Path) -> None:
    write_checkpoint("llama", tmp_path / "model")  # 128 positions
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    with served(tmp_path, tmp_path / "model", "--rope", json.dumps(rope), "--max-model-len", 512) as (client, log):
        assert "yarn" in client.get("/info").json()["headrace"]["rope"]
        prompt = "a b c d e f " * 40
        answer = client.post("/generate", json={"inputs": prompt, "parameters": {"max_new_tokens": 5, "details": True}})
        assert answer.json()["details"]["generated_tokens"] >= 1
        assert len(client.post("/tokenize", json={"inputs": prompt}).json()) > 200
    assert "yarn" in log.read_text()


def _is_ready(port: int) -> bool:
    try:
        return plain_http.get(f"http://127.0.0.1:{port}/ping", timeout=WAIT_S).status_code == 200
    except httpx.TransportError:
        return False
