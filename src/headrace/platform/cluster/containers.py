"""
Workers that are containers: the image itself runs, with Docker or Podman, by SageMaker's container contract.

A worker process (`cluster.worker`) fetches the model's files and then becomes `docker run` in the foreground, so that
its log, its signals and its exit code are those of the container. A container outlives a killed `docker run`: the
launcher removes it when its worker has ended.

Source: SageMaker developer guide, "Use Your Own Inference Code with Hosting Services"; `docker run` reference.
"""

import asyncio
import hashlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.core.errors import SettingsError
from headrace.core.telemetry import get_logger
from headrace.platform.cluster.launcher import (
    ContainerEngine,
    ContainerImage,
    Handle,
    Observation,
    WorkerPhase,
    WorkerSpec,
)
from headrace.platform.cluster.local import LocalLauncher
from headrace.platform.cluster.worker_exit import is_exit_line
from headrace.platform.cluster.worker_files import Assignment, read_value, worker_files
from headrace.platform.cluster.worker_logs import WorkerLogs

ENGINES: Final = ("docker", "podman")
CONTAINER_PORT: Final = 8080
MODEL_MOUNT: Final = "/opt/ml/model"
CHANNELS_MOUNT: Final = "/opt/ml/additional-model-data-sources"
_SHARED_MEMORY: Final = "1g"
"""Size of `/dev/shm`: PyTorch's loaders and NCCL need more than the 64 MiB that engines give by default."""
_KEPT_CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID")
"""Root's rights over users and files in the container: nginx gives them up itself; files may be another user's."""
_MAX_PROCESSES: Final = 16_384
"""Processes and threads of a container; model servers on large hosts have thousands of threads."""
_ANSWER_S: Final = 30.0
"""Timeout of an engine's short commands, such as the removal of a container."""
_PLATFORM_LABEL: Final = "headrace.platform"
_WORKER_LABEL: Final = "headrace.worker"
_KILLED: Final = 128 + 9
_ENGINE_FAILED: Final = 125
"""`docker run` could not run the container. Source: `docker run` reference, "Exit status"."""
_HINT: Final = re.compile(r"^(?:See|Run) '.*--help'")
"""An engine's last line after an error."""
_ENGINE_VARIABLES: Final = ("HOME", "PATH", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT")
_ENGINE_PREFIXES: Final = ("DOCKER_", "CONTAINER_", "CONTAINERS_")


def run_engine(engine: ContainerEngine, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of the engine that ends soon; blocks."""
    return subprocess.run(  # noqa: S603 -- a fixed program with arguments of our own
        [engine.program, *arguments],
        env=engine.variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_ANSWER_S,
        check=False,
    )


def find_engine(environment: Mapping[str, str], runtime: str | None = None) -> ContainerEngine:
    """Return the first engine on the PATH that answers; raises `SettingsError` with the errors of those that do not."""
    said = []
    for name in ENGINES:
        program = shutil.which(name, path=environment.get("PATH"))
        if program is None:
            continue
        variables = engine_variables(environment)
        engine = ContainerEngine(name=name, program=program, variables=variables, runtime=runtime or "")
        try:
            answer = run_engine(engine, "info")
        except (OSError, subprocess.TimeoutExpired) as error:
            said.append(f"{name}: {error}")
            continue
        if answer.returncode == 0:
            return engine
        said.append(f"{name}: {last_line(answer.stderr) or f'exit code {answer.returncode}'}")
    reason = "; ".join(said) or "neither docker nor podman is on the PATH"
    raise SettingsError(
        f"containers is on, and no container engine answers ({reason}). Install Docker or Podman, or start its daemon.",
        name="containers",
    )


def engine_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an engine needs; workers get none of them."""
    return {
        name: value
        for name, value in environment.items()
        if name in _ENGINE_VARIABLES or name.startswith(_ENGINE_PREFIXES)
    }


def pull_image(engine: ContainerEngine, uri: str, timeout_s: float) -> None:
    """
    Pull an image that is not there, with the engine's progress as lines of this process's output; blocks.

    Raises:
        SettingsError: it cannot be pulled; the message has the engine's reason.
        OSError, subprocess.TimeoutExpired: the engine cannot be run, or does not answer.
    """
    if run_engine(engine, "image", "inspect", uri).returncode == 0:
        return
    get_logger().info("container.pulling", image=uri, engine=engine.name)
    kept: deque[str] = deque(maxlen=20)
    with subprocess.Popen(  # noqa: S603 -- a fixed program; Podman writes its progress to stderr, Docker to stdout
        [engine.program, "pull", uri],
        env=engine.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as pulling:
        timer = threading.Timer(max(0.0, timeout_s), pulling.kill)
        timer.start()
        try:
            assert pulling.stdout is not None
            for line in pulling.stdout:
                print(line, end="", flush=True)
                kept.append(line)
        finally:
            timer.cancel()
    if pulling.returncode == 0:
        return
    if pulling.returncode == -signal.SIGKILL:
        raise SettingsError(
            f"{engine.name} has not pulled the image {uri} within {timeout_s:.0f} s. Raise "
            f"ModelDataDownloadTimeoutInSeconds, or pull it first: {engine.name} pull {uri}"
        )
    reason = last_line("".join(kept)) or f"exit code {pulling.returncode}"
    raise SettingsError(
        f"{engine.name} cannot pull the image {uri}: {reason.rstrip('.')}. Check its name, and log in to its registry "
        f"({engine.name} login) as the platform's user."
    )


def platform_label(folder: Path) -> str:
    """Return the label that identifies a platform's containers on this host: a hash of its folder."""
    return hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:12]


def container_name(folder: Path, worker: str) -> str:
    """Return the name of a worker's container, unique among the platforms of this host."""
    return f"headrace-{platform_label(folder)}-{worker}"


def run_command(
    image: ContainerImage,
    assignment: Assignment,
    *,
    model: Path | None,
    channels: Mapping[str, Path],
    environment_file: Path,
) -> list[str]:
    """
    Return the command line that runs a worker's container in the foreground.

    It mounts the folders of the model and of `AdditionalModelDataSources`, by channel. `environment_file` has the
    container's environment, as `environment_lines` writes it.
    """
    spec, given = assignment.spec, assignment.given
    mounts = {f"{CHANNELS_MOUNT}/{channel}": folder for channel, folder in channels.items()}
    if model is not None:
        mounts[MODEL_MOUNT] = model
    command = [image.engine.program, "run", "--rm", "--name", image.name, "--env-file", str(environment_file)]
    command += ["--runtime", image.engine.runtime] if image.engine.runtime else []
    command += ["--label", f"{_PLATFORM_LABEL}={image.platform}", "--label", f"{_WORKER_LABEL}={spec.name}"]
    command += ["--publish", f"{assignment.host}:{assignment.port}:{CONTAINER_PORT}", "--shm-size", _SHARED_MEMORY]
    # What code in a container may do is bounded; the root file system stays writable, as on AWS.
    kept = [option for capability in _KEPT_CAPABILITIES for option in ("--cap-add", capability)]
    command += ["--cap-drop", "ALL", *kept, "--security-opt", "no-new-privileges", "--pids-limit", str(_MAX_PROCESSES)]
    for target, folder in mounts.items():
        command += ["--mount", f"type=bind,source={folder.resolve()},target={target},readonly"]
    if spec.limits.num_cpus is not None:
        command += ["--cpus", f"{spec.limits.num_cpus:g}"]
    if spec.limits.memory_bytes is not None:
        memory = str(spec.limits.memory_bytes)
        command += ["--memory", memory, "--memory-swap", memory]  # no swap: instances have none
    if image.engine.name == "podman":
        command += [option for index in given.gpus for option in ("--device", f"nvidia.com/gpu={index}")]
    elif given.gpus:
        command += ["--gpus", f'"device={",".join(map(str, given.gpus))}"']  # quoted: docker splits values at commas
    return [*command, image.uri, "serve"]


def environment_lines(environment: Mapping[str, str]) -> str:
    """Return the text of an environment file; raises `SettingsError` for a value of several lines, which it has not."""
    for name, value in environment.items():
        if "\n" in value or "\r" in value:
            raise SettingsError(
                f"The environment variable {name!r} has several lines, which cannot be passed to a container. "
                "Put the value into a file of the model."
            )
    return "".join(f"{name}={value}\n" for name, value in environment.items())


class ContainerLauncher:
    """A `Launcher` for this host that runs the images of workers that have one, and other workers as processes."""

    name = LocalLauncher.name

    def __init__(self, local: LocalLauncher, engine: ContainerEngine, folder: Path) -> None:
        """Create a launcher over `local`, which runs the worker processes, and its folder of workers."""
        self._local = local
        self._engine = engine
        self._folder = folder
        self._logs = WorkerLogs(folder)
        self._removed: set[str] = set()
        self._is_swept = False

    async def start(self, spec: WorkerSpec) -> Handle:
        if spec.image is None:
            return await self._local.start(spec)
        self._removed.discard(spec.name)
        image = replace(
            spec.image,
            engine=self._engine,
            name=container_name(self._folder, spec.name),
            platform=platform_label(self._folder),
        )
        return await self._local.start(replace(spec, image=image))

    async def poll(self, name: str, handle: Handle) -> Observation:
        """Observe a worker; remove the container of one that has ended, and quote its log if it gave no reason."""
        seen = await self._local.poll(name, handle)
        if seen.phase is not WorkerPhase.EXITED or not await asyncio.to_thread(self._is_container, name):
            return seen
        if name not in self._removed:
            await asyncio.to_thread(self._remove, name)
            self._removed.add(name)
        return seen if seen.message else replace(seen, message=await asyncio.to_thread(self._reason, name, seen))

    async def stop(self, name: str, handle: Handle, *, grace_s: float) -> None:
        """Stop a worker: `docker run` passes SIGTERM on; after a SIGKILL the next `poll` removes the container."""
        await self._local.stop(name, handle, grace_s=grace_s)

    async def known(self) -> dict[str, Handle]:
        """Return all running workers on this host; the first time, remove containers that have none."""
        workers = await self._local.known()
        if not self._is_swept:
            self._is_swept = True
            await asyncio.to_thread(self._sweep, {container_name(self._folder, name) for name in workers})
        return workers

    async def forget(self, name: str) -> None:
        if await asyncio.to_thread(self._is_container, name) and name not in await self._local.known():
            await asyncio.to_thread(self._remove, name)
        self._removed.discard(name)
        await self._local.forget(name)

    async def close(self) -> None:
        await self._local.close()

    def _is_container(self, name: str) -> bool:
        assignment = read_value(worker_files(self._folder, name).assignment, Assignment)
        return assignment is not None and assignment.spec.image is not None

    def _remove(self, name: str) -> None:
        try:
            run_engine(self._engine, "rm", "--force", container_name(self._folder, name))
        except (OSError, subprocess.TimeoutExpired) as error:
            get_logger().warning("container.not_removed", worker=name, reason=str(error))

    def _sweep(self, kept: set[str]) -> None:
        """Remove this platform's containers whose workers ended while no platform ran, such as after a power cut."""
        label = f"label={_PLATFORM_LABEL}={platform_label(self._folder)}"
        try:
            listed = run_engine(self._engine, "ps", "--all", "--filter", label, "--format", "{{.Names}}")
            for name in sorted(set(listed.stdout.split()) - kept):
                get_logger().info("container.left_over", container=name)
                run_engine(self._engine, "rm", "--force", name)
        except (OSError, subprocess.TimeoutExpired) as error:
            get_logger().warning("container.not_listed", reason=str(error))

    def _reason(self, name: str, seen: Observation) -> str:
        """Return the exit code and the last log line of a container that ended by itself."""
        code = seen.exit_code
        if not code or code < 0:
            return ""
        events = self._logs.read(name, limit=5, is_backward=True)
        said = last_line("\n".join(event.message for event in events if not is_exit_line(event.message)))
        if code == _ENGINE_FAILED:
            return f"{self._engine.name} could not run the container: {said or 'it gave no reason'}"
        killed = " (it was killed, often for lack of memory)" if code == _KILLED else ""
        return f"The container ended with exit code {code}{killed}{f': {said}' if said else '.'}"


def last_line(text: str) -> str:
    """Return the last line, without an engine's hint to read its help."""
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line and not _HINT.match(line)), "")
