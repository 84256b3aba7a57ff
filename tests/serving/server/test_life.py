"""A server process from its first line to its exit code."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.core.errors import SettingsError
from headrace.serving.http.tls import bind, url_of
from tests import plain_http
from tests.waiting import WAIT_S, pauses

ROOT = Path(__file__).parent.parent.parent.parent
SLOW = {"delay_s": 0.02}


class Process:
    """A server process and the events of its log."""

    def __init__(self, **script: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.serving.server.echo_server", json.dumps(script)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            self.lines.extend(iter(lines.readline, ""))

    @property
    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def event(self, name: str) -> dict[str, object]:
        """Wait for an event of the log."""
        deadline_s, pause_s = time.monotonic() + WAIT_S, pauses(0.005, 0.05)
        while not (found := [event for event in self.events if event["event"] == name]):
            assert time.monotonic() < deadline_s, f"{name} never came: {self.lines}"
            time.sleep(next(pause_s))
        return found[0]

    @property
    def url(self) -> str:
        return str(self.event("server.listening")["url"])

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        code = self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.exit_code()


@contextlib.contextmanager
def process(**script: object) -> Iterator[Process]:
    running = Process(**script)
    try:
        yield running
    finally:
        running.end()


@contextlib.contextmanager
def streaming(server: Process, num_tokens: int) -> Iterator[Iterator[str]]:
    """The lines of a stream that has begun."""
    body = {"prompt": "a b c", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    with plain_http.stream("POST", f"{server.url}/v1/completions", json=body, timeout=WAIT_S) as response:
        lines = response.iter_lines()
        next(lines)
        yield lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(number):
    with process(script=SLOW) as server:
        server.event("server.ready")
        with streaming(server, 30) as lines:
            server.signal(number)
            server.event("server.stopping")
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert len(rest) == 30 - 1 + 1
        assert server.exit_code() == 0
        stopped = server.event("server.stopped")
    assert (stopped["finished"], stopped["aborted"]) == (1, 0)


def test_what_does_not_finish_in_time_is_aborted_and_told():
    with process(script=SLOW, settings={"shutdown_grace_s": 0.2}) as server:
        server.event("server.ready")
        with streaming(server, 100_000) as lines:
            server.signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert "shut down" in json.loads(rest[-2].removeprefix("data: "))["error"]["message"]
        assert server.exit_code() == 0
        stopped, record = server.event("server.stopped"), server.event("request.finished")
    assert (stopped["finished"], stopped["aborted"]) == (0, 1)
    assert (record["finish"], record["error"]) == ("abort", "aborted")


def test_while_it_stops_it_takes_nothing_new():
    with process(script=SLOW) as server:
        server.event("server.ready")
        with plain_http.Client(base_url=server.url, timeout=WAIT_S) as client, streaming(server, 100) as lines:
            client.get("/ping")
            server.signal(signal.SIGTERM)
            server.event("server.stopping")
            with contextlib.suppress(httpx.TransportError):
                assert client.get("/ping").status_code == 503
            assert list(lines)
        assert server.exit_code() == 0


def takes_connections(server: Process) -> bool:
    try:
        assert plain_http.get(f"{server.url}/ping", timeout=WAIT_S).status_code in {200, 503}
    except httpx.TransportError:
        return False
    return True


LEAVING = {"shutdown_delay_s": 600, "shutdown_grace_s": 600}


def test_after_sigterm_health_checks_fail_at_once_and_everything_else_is_still_answered():
    with process(script=SLOW, settings=LEAVING) as server:
        server.event("server.ready")
        with streaming(server, 100_000) as lines, plain_http.Client(base_url=server.url, timeout=WAIT_S) as client:
            assert client.get("/ping").status_code == 200
            server.signal(signal.SIGTERM)
            assert server.event("server.stopping")["delay_s"] == 600
            for _ in range(2):
                ping, health, root = client.get("/ping"), client.get("/health"), client.get("/")
                assert (ping.status_code, health.status_code, root.status_code) == (503, 503, 503)
                assert (ping.json()["status"], ping.headers["connection"]) == ("Terminating", "close")
                assert "shutting down" in ping.json()["reason"]
                assert "shutting down" in health.json()["error"]
                answer = client.post("/v1/completions", json={"prompt": "a b c", "max_tokens": 2})
                assert (answer.status_code, answer.headers["connection"]) == (200, "close")
            assert next(line for line in lines if line)
            server.signal(signal.SIGTERM)
            assert server.exit_code() == 128 + signal.SIGTERM


def test_after_the_delay_the_port_closes_and_a_stream_in_flight_ends_whole():
    with process(script=SLOW, settings={"shutdown_delay_s": 0.5}) as server:
        server.event("server.ready")
        with streaming(server, 200) as lines:
            server.signal(signal.SIGTERM)
            deadline_s = time.monotonic() + WAIT_S
            while takes_connections(server):
                assert time.monotonic() < deadline_s, "the port never closed"
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.exit_code() == 0
        assert server.event("server.stopped")["aborted"] == 0


def test_the_delay_is_part_of_the_grace_period():
    with process(script=SLOW, settings={"shutdown_delay_s": 0.2, "shutdown_grace_s": 0.2}) as server:
        server.event("server.ready")
        with streaming(server, 100_000) as lines:
            server.signal(signal.SIGTERM)
            assert any("shut down" in line for line in lines)
        assert server.exit_code() == 0
        assert server.event("server.stopped")["aborted"] == 1


def test_ctrl_c_skips_the_delay():
    with process(script=SLOW, settings=LEAVING) as server:
        server.event("server.ready")
        server.signal(signal.SIGINT)
        assert server.event("server.stopping")["delay_s"] == 0
        assert server.exit_code() == 0


def test_a_server_that_never_was_ready_does_not_wait_for_load_balancers():
    with process(load_s=600, settings=LEAVING) as server:
        server.event("server.listening")
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0


def test_a_second_signal_ends_it_at_once():
    with process(script=SLOW) as server:
        server.event("server.ready")
        with streaming(server, 100_000) as lines:
            server.signal(signal.SIGTERM)
            server.event("server.stopping")
            server.signal(signal.SIGTERM)
            with pytest.raises(httpx.TransportError):
                list(lines)
        assert server.exit_code() == 128 + signal.SIGTERM
        assert server.event("server.killed")["signal"] == "SIGTERM"


def test_it_listens_while_it_loads_and_is_ready_after_a_token():
    with process(script={"start_delay_s": 1.0}) as server:
        assert plain_http.get(f"{server.url}/ping", timeout=WAIT_S).status_code == 503
        server.event("server.ready")
        assert plain_http.get(f"{server.url}/ping", timeout=WAIT_S).status_code == 200


def test_a_signal_while_it_loads_stops_it():
    with process(load_s=60) as server:
        server.event("server.listening")
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    assert "server.ready" not in [event["event"] for event in server.events]


def test_a_model_that_cannot_be_loaded_is_one_sentence_and_exit_code_2():
    with process(fail="model.gguf is truncated.") as server:
        assert server.exit_code() == 2
    assert server.lines[-1] == "Error: model.gguf is truncated.\n"
    assert "Traceback" not in "".join(server.lines)


def test_a_bug_while_loading_is_exit_code_1_with_a_traceback():
    with process(fail="crash") as server:
        assert server.exit_code() == 1
    assert "RuntimeError: a bug" in "".join(server.lines)


def test_a_port_in_use_is_one_sentence_and_exit_code_2():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with process(settings={"port": port}) as server:
            assert server.exit_code() == 2
    (line,) = server.lines
    assert line.startswith(f"Error: Port {port} on 127.0.0.1 is in use.")
    assert "--port" in line


def test_a_port_in_use_names_the_setting_of_its_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingsError, match="choose another port with --management-address"):
            bind("127.0.0.1", taken.getsockname()[1], setting="management_address")


def test_notices_about_the_settings_are_logged_first():
    with process(env={"SM_NUM_GPUS": "4"}) as server:
        assert server.event("setting.ignored")["name"] == "SM_NUM_GPUS"
        assert server.event("server.ready")["model"] == "echo"
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0


@pytest.mark.parametrize(
    ("host", "words"),
    [("no-such-host.invalid", "cannot be looked up"), ("192.0.2.1", "is not an address of this machine")],
)
def test_a_host_that_is_not_ours_is_refused_with_the_flag(host, words):
    with pytest.raises(SettingsError, match=words):
        bind(host, 0)


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:"), ("::1", "http://[::1]:")]
)
def test_the_url_is_one_that_a_program_here_can_reach(host, url):
    try:
        listener = bind(host, 0)
    except SettingsError:
        pytest.skip(f"{host} does not exist here")
    with listener:
        assert url_of(listener).startswith(url)
