"""A server starts, refuses clearly, forgets a client that left, rests when idle and stops in order."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests import plain_http
from tests.waiting import WAIT_S

from .conftest import Served, headrace_command, serve
from .test_same_bytes import counter

pytestmark = pytest.mark.model


def metric(server: Served, name: str) -> float:
    return counter(plain_http.get(f"{server.url}/metrics", timeout=WAIT_S).text, name)


def eventually(fact: object, wanted: object, read: object, timeout_s: float = WAIT_S) -> None:
    """Poll until `read()` gives what is wanted; fail with what it gave last."""
    deadline_s = time.monotonic() + timeout_s
    while (seen := read()) != wanted:  # type: ignore[operator]
        assert time.monotonic() < deadline_s, f"{fact}: {seen}, wanted {wanted}"
        time.sleep(0.02)


def test_a_client_that_disconnects_frees_its_blocks(server: Served) -> None:
    eventually("running", 0.0, lambda: metric(server, "headrace_running_sequences"))
    body = {"prompt": "Count: 1 2 3", "max_tokens": 4000, "model": "smollm2", "stream": True, "ignore_eos": True}
    with plain_http.stream("POST", f"{server.url}/v1/completions", json=body, timeout=WAIT_S) as response:
        pieces = response.iter_raw()
        next(pieces)
        assert metric(server, "headrace_running_sequences") == 1

    eventually("running", 0.0, lambda: metric(server, "headrace_running_sequences"))
    free, total = metric(server, "headrace_kv_blocks_free"), metric(server, "headrace_kv_blocks")
    assert free == total


def test_system_calls_of_every_thread_are_filtered(server: Served) -> None:
    threads = list(Path(f"/proc/{server.process.pid}/task").iterdir())
    assert len(threads) > 1
    assert all("Seccomp:\t2\n" in (thread / "status").read_text() for thread in threads)


def test_an_idle_server_runs_no_steps_and_uses_hardly_any_cpu(server: Served) -> None:
    eventually("running", 0.0, lambda: metric(server, "headrace_running_sequences"))

    def cpu_ticks() -> int:
        fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def is_at_rest() -> bool:
        ticks = cpu_ticks()
        time.sleep(2)
        return cpu_ticks() - ticks <= 0.05 * 2 * os.sysconf("SC_CLK_TCK")

    steps = metric(server, "headrace_steps_total")
    eventually("at rest", True, is_at_rest)  # after the start it builds the vocabulary for grammars once
    assert metric(server, "headrace_steps_total") == steps


BAD_BODIES = {
    "malformed": b'{"inputs": ',
    "not an object": b"[1, 2]",
    "wrong type": b'{"inputs": 5}',
    "negative": b'{"inputs": "a", "parameters": {"max_new_tokens": -1}}',
    "not a number": b'{"inputs": "a", "parameters": {"temperature": NaN}}',
    "invalid UTF-8": b'{"inputs": "\xff\xfe"}',
    "empty": b"",
    "deep": b'{"inputs": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "10 MB prompt": json.dumps({"inputs": "word " * 2_000_000}).encode(),
}


@pytest.mark.parametrize("path", ["/generate", "/invocations", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("kind", BAD_BODIES)
def test_bad_input_gets_a_clear_error_and_the_server_keeps_serving(server: Served, path: str, kind: str) -> None:
    body = BAD_BODIES[kind]
    if "completions" in path:
        body = body.replace(b'"inputs"', b'"prompt"').replace(
            b'"parameters": {"max_new_tokens": -1}', b'"max_tokens": -1'
        )
        body = body.replace(b'"parameters": {"temperature": NaN}', b'"temperature": NaN')
    response = plain_http.post(
        f"{server.url}{path}", content=body, headers={"Content-Type": "application/json"}, timeout=WAIT_S
    )

    assert 400 <= response.status_code < 500, response.text
    assert response.json()["error"]
    assert plain_http.get(f"{server.url}/ping", timeout=WAIT_S).status_code == 200


def test_a_prompt_one_token_too_long_is_refused_with_the_counts(server: Served) -> None:
    info = plain_http.get(f"{server.url}/info", timeout=WAIT_S).json()
    longest = info["max_input_tokens"]
    body = {"prompt": [11] * (longest + 1), "max_tokens": 1, "model": "smollm2"}
    refused = plain_http.post(f"{server.url}/v1/completions", json=body, timeout=WAIT_S)

    assert refused.status_code == 400
    assert str(longest + 1) in refused.json()["error"]["message"]
    assert str(longest) in refused.json()["error"]["message"]


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [headrace_command(), *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, **(env or {})},
    )


def test_a_port_in_use_is_reported_in_one_sentence(smollm2_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run("serve", str(smollm2_path), "--port", port)

    assert done.returncode == 2
    assert port in done.stderr
    assert "Traceback" not in done.stderr


def test_too_little_memory_is_refused_with_the_sum(smollm2_path: Path) -> None:
    done = run("serve", str(smollm2_path), "--port", "0", "--kv-cache-bytes", "900GiB")

    assert done.returncode == 2
    assert "KV cache 921,600 MiB" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("size", [0, 3, 100, 100_000, 50_000_000])
def test_a_truncated_file_is_named(smollm2_path: Path, tmp_path: Path, size: int) -> None:
    broken = tmp_path / "broken.gguf"
    with smollm2_path.open("rb") as whole:
        broken.write_bytes(whole.read(size))
    done = run("serve", str(broken), "--port", "0")

    assert done.returncode == 2
    assert "broken.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_sigterm_lets_a_running_answer_finish(smollm2_path: Path, tmp_path: Path) -> None:
    served = serve(smollm2_path, tmp_path)
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 100}}
    with plain_http.stream("POST", f"{served.url}/generate_stream", json=body, timeout=WAIT_S) as response:
        lines = response.iter_lines()
        next(lines)
        served.process.terminate()
        rest = [json.loads(line.removeprefix("data:")) for line in lines if line]

    assert served.process.wait(timeout=WAIT_S) == 0
    assert rest[-1]["details"] is None or rest[-1]["details"]["finish_reason"] in {"length", "eos_token"}
    assert rest[-1]["generated_text"]


def test_container_names_and_serving_properties_configure_the_server(smollm2_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / smollm2_path.name).symlink_to(smollm2_path)
    (folder / "serving.properties").write_text(
        "engine=Python\noption.model_id=" + str(folder / smollm2_path.name) + "\noption.max_rolling_batch_size=3\n"
    )
    env = {"MAX_TOTAL_TOKENS": "512", "OPTION_ROLLING_BATCH": "auto", "TENSOR_PARALLEL_DEGREE": "max"}
    env["HEADRACE_TRUST_MODEL_FILES"] = "true"  # the file is a link that leads out of the folder
    served = serve(folder, tmp_path, env=env)
    try:
        info = plain_http.get(f"{served.url}/info", timeout=WAIT_S).json()
    finally:
        served.stop()

    assert info["max_total_tokens"] == 512
