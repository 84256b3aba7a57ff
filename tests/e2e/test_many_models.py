"""Two models behind one port with memory for one of them: every dialect, and what happens to their processes."""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests import plain_http
from tests.browser import Page, chromium
from tests.waiting import WAIT_S

from .conftest import Served, serve
from .test_lifecycle import eventually

pytestmark = pytest.mark.model

CHAT = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def many(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("many")
    (folder / "gguf" / "org" / "c").mkdir(parents=True)
    for name in ("a.gguf", "org/c/c.gguf"):
        (folder / "gguf" / name).symlink_to(smollm2_path)
    file = folder / "models.yaml"
    file.write_text(
        f"folder: gguf\ndefaults: {{max_model_len: 512, threads: 1}}\n"
        f"models: {{b: {{model: {smollm2_path}, aliases: [gpt-4o]}}}}\n"
    )
    served = serve("a", folder, "--models", str(file), "--models-max", "1", "--api-key", "k")
    yield served
    assert served.stop() == 0
    assert not any(is_alive(pid) for pid in workers(served)), "the models end with the server"


def post(many: Served, path: str, body: dict[str, Any]) -> Any:
    headers = {"Authorization": "Bearer k"}
    return plain_http.post(f"{many.url}{path}", json=body, headers=headers, timeout=WAIT_S)


def states(many: Served) -> dict[str, str]:
    listed = plain_http.get(f"{many.url}/v1/models", headers={"x-api-key": "k"}, timeout=WAIT_S).json()["data"]
    return {model["id"]: model["status"]["value"] for model in listed}


def workers(many: Served) -> list[int]:
    """Return the process ids of all models so far, the newest last."""
    return [int(pid) for pid in re.findall(r'"worker": "model-[^}]*?"pid": (\d+)', many.log_path.read_text())]


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_every_dialect_reaches_the_model_that_it_names(many: Served) -> None:
    short: dict[str, Any] = {"model": "a", "max_tokens": 4}
    answers = {
        "/v1/chat/completions": {**short, "messages": CHAT},
        "/v1/completions": {**short, "prompt": "The sea is"},
        "/v1/responses": {"model": "a", "input": "Say hello.", "max_output_tokens": 16},
        "/v1/messages": {**short, "messages": CHAT},
        "/v1/messages/count_tokens": {"model": "a", "messages": CHAT},
        "/api/chat": {"model": "a:latest", "messages": CHAT, "stream": False, "options": {"num_predict": 4}},
        "/api/generate": {"model": "a", "prompt": "The sea is", "stream": False, "options": {"num_predict": 4}},
        "/api/show": {"model": "a"},
        "/generate": {"inputs": "The sea is", "parameters": {"max_new_tokens": 4}},
        "/invocations": {"inputs": "The sea is", "parameters": {"max_new_tokens": 4}},
        "/tokenize": {"model": "a", "prompt": "The sea is"},
    }
    statuses = {path: post(many, path, body).status_code for path, body in answers.items()}
    assert statuses == dict.fromkeys(answers, 200)
    assert post(many, "/infill", {"model": "a", "input_prefix": "a", "input_suffix": "b"}).status_code == 400
    assert states(many) == {"a": "loaded", "b": "unloaded", "org/c": "unloaded"}
    assert plain_http.get(f"{many.url}/v1/models", timeout=WAIT_S).status_code == 401
    assert post(many, "/v1/chat/completions", {"model": "../a", "messages": CHAT}).status_code == 404


def test_another_model_takes_the_place_and_a_client_that_leaves_does_not_stop_the_load(many: Served) -> None:
    address = urlsplit(many.url)
    body = json.dumps({"model": "gpt-4o", "messages": CHAT}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Length: {len(body)}"
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        eventually("b begins", True, lambda: states(many)["b"] != "unloaded")
    eventually("states", {"a": "unloaded", "b": "loaded", "org/c": "unloaded"}, lambda: states(many))
    running = plain_http.get(f"{many.url}/api/ps", headers={"x-api-key": "k"}, timeout=WAIT_S).json()["models"]
    assert [model["name"] for model in running] == ["b:latest"]
    assert running[0]["size"] > 50 << 20, "its measured memory"


def test_a_killed_model_ends_its_streams_with_an_error_and_starts_again(many: Served) -> None:
    body = {"model": "b", "prompt": "Count:", "max_tokens": 400, "stream": True, "ignore_eos": True}
    with plain_http.stream(
        "POST", f"{many.url}/v1/completions", json=body, headers={"x-api-key": "k"}, timeout=WAIT_S
    ) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        eventually("its process is logged", True, lambda: is_alive(workers(many)[-1]))
        os.kill(workers(many)[-1], signal.SIGKILL)
        assert "ended in the middle" in [line for line in lines if line][-1]
    assert post(many, "/v1/completions", {"model": "b", "prompt": "a", "max_tokens": 1}).status_code == 200
    assert post(many, "/v1/completions", {"model": "org/c", "prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_busy_model_is_unloaded_after_its_requests(many: Served) -> None:
    body = {"model": "b", "prompt": "Count:", "max_tokens": 100, "stream": True, "ignore_eos": True}
    with plain_http.stream(
        "POST", f"{many.url}/v1/completions", json=body, headers={"x-api-key": "k"}, timeout=WAIT_S
    ) as response:
        lines = response.iter_lines()
        next(lines)
        assert post(many, "/models/unload", {"model": "b"}).json() == {"success": True}
        assert states(many)["b"] == "unloading"
        assert [line for line in lines if line][-1] == "data: [DONE]"
    eventually("unloaded", "unloaded", lambda: states(many)["b"])


@pytest.mark.browser
def test_the_chat_page_has_a_menu_of_the_models(many: Served, tmp_path: Path) -> None:
    with chromium(tmp_path) as driver:
        driver.get(f"{many.url}/ping")
        driver.execute_script("sessionStorage.setItem('headrace.key', 'k')")
        driver.get(many.url)
        page = Page(driver)
        page.until(lambda: page.find("#models").is_displayed(), "the menu")
        page.run(
            "const menu = document.getElementById('models'); menu.value = 'b'; menu.dispatchEvent(new Event('change'))"
        )
        page.until(lambda: page.run("return document.title").startswith("b "), "the chosen model")
        page.find("#prompt").send_keys("Say hello.\n")
        page.until(lambda: "b · loaded" in page.find("#models").text, "the loaded model")
        log = [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        noise = [entry for entry in log if "favicon" not in entry["message"]]  # asked for beside `/ping`, without a key
    assert noise == []
