"""Real worker processes, from the artifacts to the server or the command of an own image."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.core.gpus import Gpu
from headrace.core.processes import ProcessId, is_running, kill_session, reap
from headrace.platform.cluster.host_resources import HostResources
from headrace.platform.cluster.launcher import (
    Handle,
    ModelPrefix,
    Observation,
    ResourceRequest,
    WorkerPhase,
    WorkerSpec,
)
from headrace.platform.cluster.local import WORKER_COMMAND, LocalLauncher, ProcessOptions
from headrace.platform.cluster.worker_files import Assignment, WorkerFiles, read_value, write_value
from headrace.platform.cluster.worker_logs import WorkerLogs
from headrace.platform.cluster.worker_ping import ping
from headrace.serving.artifacts.sources import ArtifactSource
from tests import plain_http
from tests.serving.artifacts.archive_maker import archive, file
from tests.serving.artifacts.object_server import ObjectServer
from tests.waiting import WAIT_S

OWN_SERVER = """
import http.server, json, os, sys
print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}), flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
KEEPER = """
import asyncio, sys
from pathlib import Path
from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.cluster.local import LocalLauncher, ProcessOptions
async def keep(folder):
    launcher = LocalLauncher(folder, cache_folder=folder, environment={}, options=ProcessOptions(dies_with_parent=True))
    await launcher.start(WorkerSpec(name="w", command=("/bin/sleep", "100")))
    await asyncio.sleep(100)
asyncio.run(keep(Path(sys.argv[1])))
"""
NOWHERE = ArtifactSource(uri="/nowhere/m.tar.gz")
OWN_COMMAND = (sys.executable, "-c", OWN_SERVER, "{port}", "{model}/weights")


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[LocalLauncher]:
    environment = {**os.environ, "AWS_SECRET_ACCESS_KEY": "of the platform", "HEADRACE_HOME": str(tmp_path / "home")}
    made = LocalLauncher(tmp_path / "workers", cache_folder=tmp_path / "cache", environment=environment)
    yield made
    for handle in (await made.known()).values():
        process = ProcessId(**handle.facts["process"])
        kill_session(process)
        while is_running(process):
            await asyncio.sleep(0.01)
        reap(process)
    await made.close()


async def seen_as(launcher: LocalLauncher, handle: Handle, phase: WorkerPhase) -> Observation:
    deadline_s = time.monotonic() + WAIT_S
    while (seen := await launcher.poll("w", handle)).phase is not phase:
        assert seen.phase is not WorkerPhase.EXITED, seen
        assert time.monotonic() < deadline_s, seen
        await asyncio.sleep(0.02)
    return seen


def log_of(launcher: LocalLauncher) -> list[str]:
    return [event.message for event in WorkerLogs(launcher._folder).read("w")]


async def test_a_process_in_reserve_becomes_the_next_worker_or_ends(launcher) -> None:
    spec = WorkerSpec(name="w", command=(sys.executable, "-c", OWN_SERVER, "{port}"), environment={"OWN": "1"})
    await launcher.keep_spare()
    spare, _ = launcher._spare._waiting
    handle = await launcher.start(spec)
    assert ProcessId(**handle.facts["process"]) == spare
    await seen_as(launcher, handle, WorkerPhase.READY)
    started = next(json.loads(line) for line in log_of(launcher) if line.startswith('{"argv"'))
    assert (started["env"]["OWN"], Path(f"/proc/{spare.pid}/fd/0").readlink()) == ("1", Path(os.devnull))
    lost, _ = launcher._spare._waiting
    os.kill(lost.pid, signal.SIGKILL)
    os.waitid(os.P_PID, lost.pid, os.WEXITED | os.WNOWAIT)
    other = await launcher.start(replace(spec, name="other"))
    assert is_running(ProcessId(**other.facts["process"]))
    waiting, _ = launcher._spare._waiting
    await launcher.close()
    assert not any(map(is_running, (lost, waiting)))


async def test_an_own_image_gets_port_model_and_environment_but_no_secrets(launcher, tmp_path) -> None:
    (tmp_path / "model.tar.gz").write_bytes(archive([file("weights", b"w")]))
    spec = WorkerSpec(
        name="w",
        artifacts=(ArtifactSource(uri=str(tmp_path / "model.tar.gz")),),
        environment={"MINE": "yes", "SSLKEYLOGFILE": "/keys"},
        command=OWN_COMMAND,
        threads=1,
    )
    handle = await launcher.start(spec)
    await seen_as(launcher, handle, WorkerPhase.READY)
    (said,) = [json.loads(line) for line in log_of(launcher) if line.startswith('{"argv"')]
    port, weights = said["argv"]
    assert handle.url.endswith(f":{port}")
    assert Path(weights).read_bytes() == b"w"
    env = said["env"]
    assert env["SSLKEYLOGFILE"] == "/keys", "which the worker itself does not use"
    assert (env["MINE"], env["SAGEMAKER_BIND_TO_PORT"], env["OMP_NUM_THREADS"]) == ("yes", port, "1")
    assert env["SM_MODEL_DIR"] == str(Path(weights).parent)
    assert "AWS_SECRET_ACCESS_KEY" not in env
    assert ProcessId(**handle.facts["process"]).pid == int(json.loads(log_of(launcher)[0])["pid"])
    await launcher.stop("w", handle, grace_s=WAIT_S)
    await seen_as(launcher, handle, WorkerPhase.EXITED)


async def test_a_container_chooses_among_the_gpus_of_its_worker(tmp_path) -> None:
    host = HostResources(num_cores=1, gpus=tuple(Gpu(index=index) for index in range(3)))
    launcher = LocalLauncher(tmp_path / "workers", cache_folder=tmp_path, environment=os.environ, host=host)
    two = ResourceRequest(num_cpus=1, num_accelerators=2)
    taken = await launcher.start(WorkerSpec(name="taken", command=("/bin/sleep", "100"), resources=two))
    spec = WorkerSpec(
        name="w",
        environment={"CUDA_VISIBLE_DEVICES": "0"},
        command=OWN_COMMAND,
        resources=ResourceRequest(num_cpus=1, num_accelerators=1),
    )
    handle = await launcher.start(spec)
    await seen_as(launcher, handle, WorkerPhase.READY)
    (said,) = [json.loads(line) for line in log_of(launcher) if line.startswith('{"argv"')]
    assert said["env"]["CUDA_VISIBLE_DEVICES"] == "2"
    for started in (taken, handle):
        kill_session(ProcessId(**started.facts["process"]))
        reap(ProcessId(**started.facts["process"]))


@pytest.mark.parametrize(
    ("spec", "said", "ended_in"),
    [
        (WorkerSpec(name="w", artifacts=(NOWHERE,)), "/nowhere/m.tar.gz is neither a file", WorkerPhase.FETCHING),
        (WorkerSpec(name="w", command=("/nowhere/serve",)), "of the image cannot be started", WorkerPhase.STARTING),
        (WorkerSpec(name="w", environment={"A\0": "b"}, command=OWN_COMMAND), "environment variable", None),
        (WorkerSpec(name="w"), "No model was named", WorkerPhase.STARTING),
        (WorkerSpec(name="w", environment={"HF_MODEL_ID": "smolm2"}), "Did you mean smollm2", WorkerPhase.STARTING),
    ],
)
async def test_a_failing_worker_reports_the_reason_and_the_phase(launcher, spec, said, ended_in) -> None:
    handle = await launcher.start(spec)
    seen = await seen_as(launcher, handle, WorkerPhase.EXITED)
    assert (seen.exit_code, said in seen.message) == (2, True), seen.message
    assert seen.ended_in is ended_in
    assert f"Error: {seen.message}" in log_of(launcher)
    again = LocalLauncher(launcher._folder, cache_folder=launcher._cache_folder, environment={})
    assert await again.poll("w", handle) == seen, "its code is known in another life, too"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"HF_MODEL_ID": "smolm2"}, "Did you mean smollm2"),
        ({"HF_MODEL_ID": "/opt/ml/model"}, "There are no objects below s3://b/made-up/"),
        ({}, "or name a model in HF_MODEL_ID"),
    ],
)
async def test_an_empty_prefix_is_skipped_if_the_environment_names_a_model(launcher, environment, said) -> None:
    made_up = ArtifactSource(uri="s3://b/made-up/", is_prefix=True, is_archive=False)
    with ObjectServer() as objects:
        objects.contents["/b/x"] = b"1"
        spec = objects.granted(WorkerSpec(name="w", artifacts=(made_up,), environment=environment))
        seen = await seen_as(launcher, await launcher.start(spec), WorkerPhase.EXITED)
    assert said in seen.message


async def test_submitted_code_is_fetched_and_unpacked_as_untrusted_input(launcher) -> None:
    with ObjectServer() as objects:
        objects.contents["/b/sourcedir.tar.gz"] = archive([file("../inference.py", b"")])
        environment = {"SAGEMAKER_SUBMIT_DIRECTORY": "s3://b/sourcedir.tar.gz"}
        spec = objects.granted(WorkerSpec(name="w", environment=environment))
        seen = await seen_as(launcher, await launcher.start(spec), WorkerPhase.EXITED)
    assert seen.message.startswith("s3://b/sourcedir.tar.gz contains '../inference.py', which would be outside")


def test_a_port_in_use_is_one_clear_error(tmp_path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        spec = WorkerSpec(name="w", environment={"HF_MODEL_ID": "smollm2"})
        files = WorkerFiles(tmp_path)
        write_value(files.assignment, Assignment(spec=spec, port=port, cache_folder=str(tmp_path), log_position=0))
        done = subprocess.run([*WORKER_COMMAND, files.assignment], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2
    assert f"Error: Port {port} on 127.0.0.1 is in use." in done.stderr
    handle = read_value(files.handle, Handle)
    assert handle is not None
    assert handle.url == f"http://127.0.0.1:{port}"


def run_assigned(folder: Path, **assignment: Any) -> "subprocess.CompletedProcess[str]":
    """Run a worker process with an assignment."""
    files = WorkerFiles(folder)
    write_value(files.assignment, Assignment(port=1, cache_folder=str(folder), log_position=0, **assignment))
    return subprocess.run(
        [*WORKER_COMMAND, files.assignment], capture_output=True, text=True, timeout=WAIT_S, check=False
    )


def test_an_own_image_without_host_is_refused_on_another_address(tmp_path: Path) -> None:
    done = run_assigned(tmp_path, spec=WorkerSpec(name="w", command=("serve", "{port}")), host="10.1.2.3", token="t")
    assert done.returncode == 2
    assert "Error: The image's command has no {host}, so it would not listen on 10.1.2.3" in done.stderr


def test_an_own_image_gets_the_host_and_the_key_to_require(tmp_path: Path) -> None:
    command = ("/bin/sh", "-c", "echo {host} {port} $HEADRACE_HOST $HEADRACE_API_KEY")
    done = run_assigned(tmp_path, spec=WorkerSpec(name="w", command=command), host="10.1.2.3", token="sesame")
    assert done.stdout.splitlines()[-1] == "10.1.2.3 1 10.1.2.3 sesame"


def test_an_own_image_without_a_key_listens_on_loopback_only(tmp_path: Path) -> None:
    spec = WorkerSpec(
        name="w", command=("/bin/sh", "-c", "echo $HEADRACE_HOST"), environment={"HEADRACE_CONTAINER": "true"}
    )
    assert run_assigned(tmp_path, spec=spec).stdout.splitlines()[-1] == "127.0.0.1"


def test_a_worker_is_killed_when_its_parent_dies(tmp_path: Path) -> None:
    keeper = subprocess.Popen([sys.executable, "-c", KEEPER, str(tmp_path)])
    command_line, deadline_s = b"", time.monotonic() + WAIT_S
    while not command_line.startswith(b"/bin/sleep"):
        assert time.monotonic() < deadline_s, command_line
        if (handle := read_value(tmp_path / "w" / "handle.json", Handle)) is not None:
            process = ProcessId(**handle.facts["process"])
            command_line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        time.sleep(0.01)
    keeper.kill()
    keeper.wait()
    while is_running(process):
        assert time.monotonic() < deadline_s, "it outlived its keeper"
        time.sleep(0.01)


def test_a_worker_whose_parent_has_already_ended_does_not_start(tmp_path: Path) -> None:
    gone = ProcessId(pid=os.getpid(), start_ticks=1, boot_id="another")
    command = ("/bin/sh", "-c", f"touch {tmp_path}/served")
    done = run_assigned(tmp_path, spec=WorkerSpec(name="w", command=command), parent=gone)
    assert done.returncode == 1
    assert f"process {gone.pid}, which started this one, has ended" in done.stderr
    assert not (tmp_path / "served").exists()


def test_a_log_that_cannot_be_written_does_not_stop_the_worker(tmp_path) -> None:
    files = WorkerFiles(tmp_path)
    command = ("/bin/sh", "-c", f"touch {tmp_path}/served")
    spec = WorkerSpec(name="w", command=command)
    write_value(files.assignment, Assignment(spec=spec, port=1, cache_folder=str(tmp_path), log_position=0))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*WORKER_COMMAND, files.assignment], stdout=full, stderr=full, timeout=WAIT_S)
    assert done.returncode == 0
    assert (tmp_path / "served").exists()


@pytest.mark.model
async def test_a_model_in_a_bucket_named_by_properties_in_an_archive_is_served(
    launcher, smollm2_path, tmp_path
) -> None:
    properties = b"engine=MPI\noption.model_id=s3://models/small/\noption.rolling_batch=lmi-dist\n"
    with ObjectServer() as objects:
        objects.contents["/uploads/code.tar.gz"] = archive([file("mymodel/serving.properties", properties)])
        objects.contents["/models/small/model.gguf"] = smollm2_path.read_bytes()
        spec = WorkerSpec(
            name="w",
            artifacts=(ArtifactSource(uri="s3://uploads/code.tar.gz"),),
            options={"dialect": "lmi-0.26"},
            environment={"SM_NUM_GPUS": "4"},
            threads=2,
        )
        handle = await launcher.start(objects.granted(spec))
        seen = await seen_as(launcher, handle, WorkerPhase.READY)
    assert [notice for notice in seen.notices if "SM_NUM_GPUS" in notice], seen.notices
    async with plain_http.AsyncClient(timeout=WAIT_S) as client:
        body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 4}}
        answer = await client.post(f"{handle.url}/invocations", json=body)
    assert answer.status_code == 200
    assert "generated_text" in answer.json()
    await launcher.stop("w", handle, grace_s=WAIT_S)
    assert (await seen_as(launcher, handle, WorkerPhase.EXITED)).exit_code == 0


@pytest.mark.parametrize(
    "parts",
    [
        {"models": ModelPrefix(prefix="/nowhere/")},
        {"containers": tuple(WorkerSpec(name=name, command=(*OWN_COMMAND[:3], "{port}")) for name in "ab")},
    ],
)
async def test_a_worker_that_other_machines_reach_proves_who_it_is(tmp_path, parts) -> None:
    options = ProcessOptions(host="127.0.0.2", token="t" * 32)
    launcher = LocalLauncher(tmp_path, cache_folder=tmp_path, environment=os.environ, options=options)
    handles = [await launcher.start(WorkerSpec(name=name, **parts)) for name in ("w", "x")]
    try:
        await seen_as(launcher, handles[0], WorkerPhase.READY)
        assert await LocalLauncher(tmp_path, cache_folder=tmp_path, environment={}).known() == dict(
            zip(("w", "x"), handles, strict=True)
        )
        url, pins = handles[0].url.partition("#")[0], {handle.url.partition("#")[2] for handle in handles}
        assert (url.startswith("https://127.0.0.2:"), len(pins)) == (True, 2)
        assert plain_http.get(f"{url}/metrics").status_code == 401
        assert not await ping(f"{url}#{handles[1].url.partition('#')[2]}", WAIT_S)
        with pytest.raises(httpx.TransportError):
            plain_http.get(f"{url.replace('https', 'http')}/ping")
        assert (WorkerFiles(tmp_path / "w").certificate.stat().st_mode & 0o777) == 0o600
    finally:
        for name, handle in zip(("w", "x"), handles, strict=True):
            await launcher.stop(name, handle, grace_s=0)
            while (await launcher.poll(name, handle)).phase is not WorkerPhase.EXITED:
                await asyncio.sleep(0.02)
        await launcher.close()


@pytest.mark.parametrize(
    ("platform", "spec", "said"),
    [
        (
            {},
            WorkerSpec(name="w", command=OWN_COMMAND, environment={"HEADRACE_SANDBOX": "off"}),
            "The model's Environment sets HEADRACE_SANDBOX. Only the owner of the platform may",
        ),
        (
            {"HEADRACE_SANDBOX": "require"},
            WorkerSpec(name="w", command=OWN_COMMAND),
            "The image's command runs as it is, and sandbox is require",
        ),
        (
            {},
            WorkerSpec(name="w", environment={"HEADRACE_TLS_KEY": "/etc/hostname", "HF_MODEL_ID": "m"}),
            "tls_key is /etc/hostname; expected none: the platform gives its workers their certificates",
        ),
    ],
)
async def test_no_model_leaves_the_bounds_that_the_platform_sets(tmp_path, platform, spec, said) -> None:
    environment = {**os.environ, **platform}
    launcher = LocalLauncher(tmp_path / "workers", cache_folder=tmp_path / "cache", environment=environment)
    handle = await launcher.start(spec)
    while (await launcher.poll("w", handle)).phase is not WorkerPhase.EXITED:
        await asyncio.sleep(0.02)
    assert any(said in line for line in log_of(launcher))
    await launcher.close()
