"""The echo server, as `docs/testing.md` shows it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from headrace.core.errors import Busy
from headrace.testing.echo import EchoBackend, EchoScript
from headrace.testing.server import echo_server
from tests import plain_http
from tests.waiting import WAIT_S

PAGE = Path(__file__).parent.parent.parent / "docs" / "testing.md"


def test_the_examples_of_the_page_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 5
    for example in examples:
        names = {"__name__": "example"}
        exec(compile(example, "<example>", "exec"), names)
        tests = [value for name, value in names.items() if name.startswith("test_")]
        assert tests
        for test in tests:
            test()


def test_settings_and_scripts_apply_to_the_server_in_this_process() -> None:
    backend = EchoBackend(script=EchoScript(refusal=Busy("Full.", retry_after_s=2.0)))
    with echo_server(backend, api_key="s3cret") as server:
        assert plain_http.get(f"{server.url}/v1/models").status_code == 401
        refused = plain_http.post(
            f"{server.url}/v1/completions",
            json={"model": "echo", "prompt": "one two"},
            headers={"Authorization": "Bearer s3cret"},
            timeout=WAIT_S,
        )
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")


def test_the_command_serves_until_a_signal() -> None:
    command = [sys.executable, "-P", "-m", "headrace.testing.server", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            ready = next(line for line in process.stdout if "server.ready" in line)
            url = re.search(r"http://[\d.:]+", ready)[0]
            body = {"inputs": "red green blue", "parameters": {"max_new_tokens": 2}}
            answer = plain_http.post(f"{url}/generate", json=body, timeout=WAIT_S)
            assert answer.json()["generated_text"] == "red green"
        finally:
            process.send_signal(signal.SIGTERM)
            rest = process.stdout.read()
        assert process.wait(WAIT_S) == 0, rest
        assert "server.stopped" in rest
