"""Workers with several containers, in real processes: a pipeline, direct invocation, and the ends of containers."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from headrace.core.processes import ProcessId, is_running, processes_with_argument
from headrace.platform.cluster.container_group import shared_out
from headrace.platform.cluster.container_header import HEADER, read_answered, write_answered
from headrace.platform.cluster.launcher import Handle, Observation, WorkerPhase, WorkerSpec
from headrace.platform.cluster.local import LocalLauncher
from headrace.platform.cluster.worker_logs import WorkerLogs
from tests import plain_http
from tests.waiting import WAIT_S, pauses

SERVER = """
import http.server, os, sys
NAME = sys.argv[1]
print(NAME, "serves", flush=True)
if "FAILS" in os.environ:
    sys.exit("Error: the weights are broken.")
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        series = b"# TYPE requests gauge\\nrequests 2.0\\nprocess_resident_memory_bytes 5.0\\n"
        page = series if self.path == "/metrics" else b""
        self.answer(200, page)
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if f"die {NAME}" in body:
            os._exit(9)
        seen = [self.headers.get(name, "-") for name in ("Content-Type", "Accept", "X-Mine")]
        answer = f"{body}|{NAME}:{','.join(seen)}".encode()
        if f"stream {NAME}" in body:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (answer, b"", b" end"):
                if part:
                    self.wfile.write(b"%x\\r\\n%b\\r\\n" % (len(part), part))
            self.wfile.write(b"0\\r\\n\\r\\n")
        else:
            self.answer(418 if f"refuse {NAME}" in body else 200, answer)
    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "text/" + NAME)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def group(folder: Path, *names: str, is_direct: bool = False, failing: str = "") -> WorkerSpec:
    containers = tuple(
        WorkerSpec(
            name=name,
            command=(sys.executable, "-S", "-c", SERVER, name, "{port}", str(folder)),
            environment={"FAILS": "yes"} if name == failing else {},
        )
        for name in names
    )
    return WorkerSpec(name="g", containers=containers, is_direct=is_direct)


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[LocalLauncher]:
    made = LocalLauncher(tmp_path / "workers", cache_folder=tmp_path / "cache", environment=os.environ)
    yield made
    for name, handle in (await made.known()).items():
        await made.stop(name, handle, grace_s=0)
        await seen_as(made, handle, WorkerPhase.EXITED)
    await made.close()


async def seen_as(launcher: LocalLauncher, handle: Handle, phase: WorkerPhase) -> Observation:
    deadline_s, pause_s = time.monotonic() + WAIT_S, pauses(0.02)
    while (seen := await launcher.poll("g", handle)).phase is not phase:
        assert seen.phase is not WorkerPhase.EXITED, seen
        assert time.monotonic() < deadline_s, seen
        await asyncio.sleep(next(pause_s))
    return seen


def answered(response: httpx.Response) -> list[str]:
    return [name for name, _ in read_answered(response.headers.get(HEADER))]


async def test_a_pipeline_passes_bodies_on_and_ends_with_its_first_lost_container(launcher, tmp_path: Path) -> None:
    handle = await launcher.start(group(tmp_path, "first", "second", "last"))
    ready = await seen_as(launcher, handle, WorkerPhase.READY)
    assert (ready.container, await launcher.known()) == ("", {"g": handle})
    headers = {"content-type": "text/csv", "accept": "text/html", "x-mine": "1"}
    async with plain_http.AsyncClient(base_url=handle.url, headers=headers) as client:
        response = await client.post("/invocations", content=b"a")
        chain = "a|first:text/csv,-,1|second:text/first,-,1|last:text/second,text/html,1"
        assert (response.text, response.headers["content-type"]) == (chain, "text/last")
        assert answered(response) == ["first", "second", "last"]
        refused = await client.post("/invocations", content=b"refuse second")
        assert (refused.status_code, answered(refused)) == (418, ["first", "second"])
        async with client.stream("POST", "/invocations", content=b"stream last") as streamed:
            assert [part async for part in streamed.aiter_raw()][-1].endswith(b" end")
        page = (await client.get("/metrics")).text
        assert "requests 6.0" in page
        assert "process_resident_memory_bytes 15.0" in page
        assert 'headrace_container_process_resident_memory_bytes{container="second"} 5.0' in page
        unknown = await client.get("/v1/models")
        assert (unknown.status_code, "Send POST /invocations." in unknown.json()["error"]["message"]) == (404, True)
        assert [event.message for event in WorkerLogs(tmp_path / "workers").read("g+second")][-1] == "second serves"
        with pytest.raises(httpx.RemoteProtocolError):  # the gateway sends it to another replica
            await client.post("/invocations", content=b"die second")
    gone = await seen_as(launcher, handle, WorkerPhase.EXITED)
    assert (gone.exit_code, gone.container, gone.message) == (9, "second", "")
    assert processes_with_argument(str(tmp_path)) == []


async def test_a_request_names_its_container_and_a_stop_or_a_kill_ends_all(launcher, tmp_path: Path) -> None:
    spec = group(tmp_path, "one", "two", is_direct=True)
    handle = await launcher.start(spec)
    await seen_as(launcher, handle, WorkerPhase.READY)
    target = "X-Amzn-SageMaker-Target-Container-Hostname"
    async with plain_http.AsyncClient(base_url=handle.url) as client:
        response = await client.post("/invocations", content=b"a", headers={target: "two", "accept": "text/html"})
        assert (response.text, answered(response)) == ("a|two:-,text/html,-", ["two"])
        assert (await client.post("/any/path", content=b"a", headers={target: "one"})).text.startswith("a|one")
        for headers in ({target: "three"}, {}):
            assert (await client.post("/invocations", content=b"a", headers=headers)).status_code == 404
    await launcher.stop("g", handle, grace_s=WAIT_S)
    assert (await seen_as(launcher, handle, WorkerPhase.EXITED)).exit_code == 0
    again = await launcher.start(spec)
    await seen_as(launcher, again, WorkerPhase.READY)
    os.kill(ProcessId(**again.facts["process"]).pid, 9)
    await seen_as(launcher, again, WorkerPhase.EXITED)
    deadline_s = time.monotonic() + WAIT_S
    while any(is_running(process) for process in processes_with_argument(str(tmp_path))):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


async def test_a_container_that_cannot_start_is_named_with_its_reason(launcher, tmp_path: Path) -> None:
    handle = await launcher.start(group(tmp_path, "fine", "broken", failing="broken"))
    gone = await seen_as(launcher, handle, WorkerPhase.EXITED)
    assert (gone.container, gone.message, gone.exit_code) == ("broken", "the weights are broken.", 1)
    assert processes_with_argument(str(tmp_path)) == []


def test_cores_and_memory_are_shared_out_to_language_models() -> None:
    parts = (WorkerSpec(name="code", runs_code=True), WorkerSpec(name="a"), WorkerSpec(name="b"))
    shares = shared_out(WorkerSpec(name="g", containers=parts, threads=5, memory_bytes=9 << 30))
    half_bytes = ((9 << 30) - (512 << 20)) // 2
    assert [(part.threads, part.memory_bytes) for part in shares] == [(5, None), (2, half_bytes), (2, half_bytes)]
    (small, _) = shared_out(WorkerSpec(name="g", containers=parts[1::-1], memory_bytes=600 << 20))
    assert small.memory_bytes == 300 << 20  # code never takes more than half
    (alone,) = shared_out(WorkerSpec(name="g", containers=parts[1:2]))
    assert (alone.threads, alone.memory_bytes) == (None, None)


@pytest.mark.parametrize("text", [None, "", "a=x", "=1", "a=nan,b", "a=-1,b", "a=inf"])
def test_a_header_that_a_group_has_not_written_says_nothing(text: str | None) -> None:
    assert read_answered(text) == []
    assert read_answered(write_answered([("a", 0.25)], "b")) == [("a", 0.25), ("b", 0.0)]
