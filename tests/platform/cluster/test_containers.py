"""Workers that are containers, with an engine that keeps processes in their place."""

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.core.processes import ProcessId, is_running, process_id
from headrace.platform.cluster.containers import (
    ContainerLauncher,
    container_name,
    environment_lines,
    find_engine,
    platform_label,
    pull_image,
    run_command,
)
from headrace.platform.cluster.host_resources import Given
from headrace.platform.cluster.launcher import (
    ContainerEngine,
    ContainerImage,
    Handle,
    Limits,
    WorkerPhase,
    WorkerSpec,
)
from headrace.platform.cluster.local import LocalLauncher
from headrace.platform.cluster.worker_files import Assignment
from headrace.serving.artifacts.sources import ArtifactSource
from tests.waiting import WAIT_S

from .sites import seen_as, until

URI = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-cpu-py312"
IMAGE = ContainerImage(uri=URI, engine=ContainerEngine(name="docker", program="docker"), name="n")
STUB = Path(__file__).parent / "stub_engine.py"


@dataclass(frozen=True)
class Dock:
    """A launcher over the stub engine."""

    launcher: ContainerLauncher
    local: LocalLauncher
    workers: Path
    containers: Path
    """Folder of the engine."""

    def facts(self, worker: str) -> dict[str, object]:
        facts: dict[str, object] = json.loads(self._file(worker, "json").read_text())
        return facts

    def is_there(self, worker: str) -> bool:
        return self._file(worker, "pid").exists()

    def process(self, worker: str) -> int:
        return int(self._file(worker, "pid").read_text())

    def _file(self, worker: str, suffix: str) -> Path:
        return self.containers / f"{container_name(self.workers, worker)}.{suffix}"

    async def ready(self, spec: WorkerSpec) -> Handle:
        handle = await self.launcher.start(spec)
        await seen_as(self.launcher, spec.name, handle, WorkerPhase.READY)
        return handle


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def engine(tmp_path: Path) -> ContainerEngine:
    (tmp_path / "containers").mkdir()
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "docker", f'exec {sys.executable} -S -P {STUB} "$@"')
    variables = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "STUB_ENGINE": str(tmp_path / "containers"),
        "DOCKER_HOST": "unix:///docker.sock",
    }
    engine = find_engine(variables)
    assert (engine.name, engine.variables["DOCKER_HOST"]) == ("docker", "unix:///docker.sock")
    return replace(engine, variables=variables)


@pytest.fixture
async def dock(tmp_path: Path, engine: ContainerEngine) -> AsyncIterator[Dock]:
    local = LocalLauncher(
        tmp_path / "workers", cache_folder=tmp_path / "cache", environment=os.environ, ping_timeout_s=WAIT_S
    )
    launcher = ContainerLauncher(local, engine, tmp_path / "workers")
    yield Dock(launcher, local, tmp_path / "workers", tmp_path / "containers")
    for name, handle in (await launcher.known()).items():
        await launcher.stop(name, handle, grace_s=0)
        await seen_as(launcher, name, handle, WorkerPhase.EXITED)
    await launcher.close()


def spec(name: str, **options: object) -> WorkerSpec:
    return replace(WorkerSpec(name=name, image=ContainerImage(uri=URI)), **options)


async def test_an_image_runs_by_the_container_contract(dock: Dock, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.pt").write_bytes(b"weights")
    environment = {"HF_TASK": "text-generation", "LD_PRELOAD": "/opt/ml/model/x.so", "AWS_REGION": "us-east-1"}
    wanted = spec("w", artifacts=(ArtifactSource(uri=str(model), is_archive=False),), environment=environment)

    handle = await dock.ready(wanted)

    facts = dock.facts("w")
    options = facts["options"]
    assert isinstance(options, list)
    assert options[-2:] == [URI, "serve"]
    assert f"{handle.url.removeprefix('http://')}:8080" in options
    (mount,) = [option for option in options if option.startswith("type=bind")]
    source = mount.split("source=")[1].split(",")[0]
    assert mount.endswith(",target=/opt/ml/model,readonly")
    assert (Path(source) / "model.pt").read_bytes() == b"weights"
    assert facts["environment"] == environment
    engine_environment = facts["engine_environment"]
    assert isinstance(engine_environment, dict)
    assert not {"HF_TASK", "LD_PRELOAD"} & set(engine_environment), "the model's variables are not those of the engine"
    assert (dock.workers / "w" / "container.env").stat().st_mode & 0o777 == 0o600
    assert f"headrace.platform={platform_label(dock.workers)}" in options
    assert "headrace.worker=w" in options


async def test_a_stop_ends_the_container(dock: Dock) -> None:
    handle = await dock.ready(spec("w"))
    container = process_id(dock.process("w"))
    assert container is not None
    await dock.launcher.stop("w", handle, grace_s=WAIT_S)
    await seen_as(dock.launcher, "w", handle, WorkerPhase.EXITED)
    assert not is_running(container)
    await dock.launcher.forget("w")
    assert not (dock.workers / "w").exists()


async def test_a_container_whose_engine_process_was_killed_is_removed_and_can_start_again(dock: Dock) -> None:
    handle = await dock.ready(spec("w"))
    first = process_id(dock.process("w"))
    assert first is not None
    os.kill(handle.facts["process"]["pid"], signal.SIGKILL)
    await seen_as(dock.launcher, "w", handle, WorkerPhase.EXITED)
    await until(lambda: asyncio.to_thread(lambda: not is_running(first)))
    assert not dock.is_there("w")
    again = await dock.ready(spec("w"))
    assert again != handle


async def test_a_container_that_is_left_over_is_replaced_by_the_next_one_of_its_name(dock: Dock) -> None:
    handle = await dock.ready(spec("w"))
    first = process_id(dock.process("w"))
    assert first is not None
    os.kill(handle.facts["process"]["pid"], signal.SIGKILL)
    await until(lambda: asyncio.to_thread(lambda: not is_running(ProcessId(**handle.facts["process"]))))
    await dock.ready(spec("w"))
    await until(lambda: asyncio.to_thread(lambda: not is_running(first)))


async def test_the_last_line_of_a_container_that_fails_is_the_reason(dock: Dock) -> None:
    handle = await dock.launcher.start(spec("w", environment={"SCRIPT": "fail"}))
    seen = await seen_as(dock.launcher, "w", handle, WorkerPhase.EXITED)
    assert seen.message == "The container ended with exit code 3: ImportError: no weights"


async def test_what_the_engine_says_is_the_reason_if_it_cannot_run_a_container(dock: Dock) -> None:
    handle = await dock.launcher.start(spec("w", environment={"SCRIPT": "refuse"}))
    seen = await seen_as(dock.launcher, "w", handle, WorkerPhase.EXITED)
    assert seen.message == (
        "docker could not run the container: docker: Error response from daemon: "
        'exec: "serve": executable file not found in $PATH.'
    )


def test_an_image_that_is_absent_is_pulled_with_its_progress_in_the_log(
    engine: ContainerEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    pull_image(engine, "registry/present:1", WAIT_S)
    assert not capsys.readouterr().out
    pull_image(engine, "registry/absent:1", WAIT_S)
    progress = ["2.6.0-cpu-py312: Pulling from pytorch-inference", "Status: Downloaded newer image"]
    assert capsys.readouterr().out.splitlines()[-2:] == progress


async def test_an_image_that_cannot_be_pulled_fails_the_worker_with_the_engines_reason(dock: Dock) -> None:
    handle = await dock.launcher.start(spec("w", image=ContainerImage(uri="registry/absent-denied:1")))
    seen = await seen_as(dock.launcher, "w", handle, WorkerPhase.EXITED)
    assert seen.message == (
        "docker cannot pull the image registry/absent-denied:1: Error response from daemon: pull access denied for "
        "denied, may require 'docker login'. Check its name, and log in to its registry (docker login) as the "
        "platform's user."
    )
    assert seen.ended_in is WorkerPhase.STARTING, "it is no failure of the model's data"


def test_a_pull_ends_at_the_limit_of_downloads(engine: ContainerEngine) -> None:
    with pytest.raises(
        SettingsError, match=r"docker has not pulled the image a/absent-slow:1 within 0 s\. Raise Model"
    ):
        pull_image(engine, "a/absent-slow:1", 0.2)


async def test_containers_without_a_worker_are_removed_when_the_platform_starts_again(dock: Dock) -> None:
    lost, kept = [await dock.ready(spec(name)) for name in ("lost", "kept")]
    containers = [process_id(dock.process(name)) for name in ("lost", "kept")]
    os.kill(lost.facts["process"]["pid"], signal.SIGKILL)
    await until(lambda: asyncio.to_thread(lambda: not is_running(ProcessId(**lost.facts["process"]))))

    again = ContainerLauncher(dock.local, dock.launcher._engine, dock.workers)
    assert await again.known() == {"kept": kept}

    assert [container is not None and is_running(container) for container in containers] == [False, True]


async def test_a_variable_of_several_lines_fails_the_worker_with_its_name(dock: Dock) -> None:
    handle = await dock.launcher.start(spec("w", environment={"TEMPLATE": "a\nb"}))
    seen = await seen_as(dock.launcher, "w", handle, WorkerPhase.EXITED)
    assert seen.message.startswith("The environment variable 'TEMPLATE' has several lines")


def command_of(image: ContainerImage, **options: object) -> list[str]:
    assignment = Assignment(spec=WorkerSpec(name="w"), port=9000, cache_folder="/c", log_position=0)
    return run_command(
        image, replace(assignment, **options), model=None, channels={}, environment_file=Path("/w/container.env")
    )


def test_limits_and_gpus_become_options_of_the_engine() -> None:
    limited = WorkerSpec(name="w", limits=Limits(num_cpus=2.5, memory_bytes=1 << 30))

    command = command_of(IMAGE, spec=limited, given=Given(gpus=(0, 2)))

    assert " ".join(command).endswith(
        f'--cpus 2.5 --memory 1073741824 --memory-swap 1073741824 --gpus "device=0,2" {URI} serve'
    )
    podman = command_of(replace(IMAGE, engine=replace(IMAGE.engine, name="podman")), given=Given(gpus=(1,)))
    assert " ".join(podman).endswith(f"--device nvidia.com/gpu=1 {URI} serve")
    assert "--gpus" not in command_of(IMAGE)


def test_containers_keep_only_the_rights_over_users_and_files() -> None:
    command = " ".join(command_of(IMAGE))
    assert (
        "--cap-drop ALL --cap-add CHOWN --cap-add DAC_OVERRIDE --cap-add KILL --cap-add SETGID --cap-add SETUID"
        in command
    )
    assert command.count("--cap-add") == 5
    assert "--security-opt no-new-privileges --pids-limit 16384" in command
    assert "--privileged" not in command


def test_containers_run_in_the_runtime_that_the_settings_name() -> None:
    assert "--runtime" not in command_of(IMAGE)
    command = " ".join(command_of(replace(IMAGE, engine=replace(IMAGE.engine, runtime="runsc"))))
    assert "run --rm" in command
    assert " --runtime runsc --label " in command


def test_channels_are_mounted_beside_the_model() -> None:
    command = run_command(
        IMAGE,
        Assignment(spec=WorkerSpec(name="w"), port=9000, cache_folder="/c", log_position=0),
        model=Path("/m"),
        channels={"draft": Path("/d")},
        environment_file=Path("/e"),
    )
    assert "type=bind,source=/d,target=/opt/ml/additional-model-data-sources/draft,readonly" in command


def test_an_environment_file_has_a_line_for_each_variable() -> None:
    assert environment_lines({"A": "1", "B": "x=y z"}) == "A=1\nB=x=y z\n"
    with pytest.raises(SettingsError, match="'C' has several lines"):
        environment_lines({"C": "1\n2"})


def test_podman_runs_containers_if_the_daemon_of_docker_does_not_answer(tmp_path: Path) -> None:
    program(tmp_path, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    with pytest.raises(SettingsError, match=r"no container engine answers \(docker: Cannot connect to the Docker"):
        find_engine({"PATH": str(tmp_path)})
    podman = program(tmp_path, "podman", "exit 0")
    assert find_engine({"PATH": str(tmp_path)}) == ContainerEngine(
        name="podman", program=str(podman), variables={"PATH": str(tmp_path)}
    )


def test_a_host_without_an_engine_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"neither docker nor podman is on the PATH.*Install Docker or Podman"):
        find_engine({"PATH": str(tmp_path)})
