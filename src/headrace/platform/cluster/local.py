"""
The launcher of workers that are processes on this host.

Each worker has a folder of its name (`worker_files`) and outlives this process. Its handle, enough to find it again, is
also written by the worker itself. The state of a worker is always read from its folder, `/proc` and `/ping`; nothing is
kept only in memory.
"""

import asyncio
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from headrace.core.host_memory import available_memory_bytes
from headrace.core.processes import (
    ProcessId,
    is_running,
    is_session_running,
    kill_session,
    process_id,
    reap,
    send_signal,
    spawn,
)
from headrace.core.telemetry import get_logger
from headrace.platform.cluster.cgroups import WorkerCgroups
from headrace.platform.cluster.host_resources import (
    Given,
    Holding,
    HostResources,
    give,
    gpu_environment,
    gpus_text,
    room_of,
)
from headrace.platform.cluster.launcher import Handle, LaunchFailed, Observation, WorkerPhase, WorkerSpec
from headrace.platform.cluster.placement import Room
from headrace.platform.cluster.ports import WORKER_PORTS, free_ports
from headrace.platform.cluster.spare import SpareWorker
from headrace.platform.cluster.worker_exit import ExitLog
from headrace.platform.cluster.worker_files import (
    LOOPBACK,
    Assignment,
    WorkerFiles,
    issue_certificate,
    read_value,
    worker_files,
    write_atomically,
    write_value,
)
from headrace.platform.cluster.worker_logs import WorkerLogs
from headrace.platform.cluster.worker_ping import PING_TIMEOUT_S, pinged_phase
from headrace.serving.http.otlp import SECRETS as EXPORT_SECRETS
from headrace.serving.settings.code_settings import ISOLATION_VARIABLES

WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "headrace", "worker")
_PASSED_ON: Final = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_WAIT_POLICY"),
        *("HEADRACE_HOME", "HEADRACE_CACHE_DIR", "HEADRACE_ISA"),
        *ISOLATION_VARIABLES,
        *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT"),
        *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE"),
        *("PIP_CACHE_DIR", "PIP_CERT", "PIP_TRUSTED_HOST"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *EXPORT_SECRETS,
    )
)
_PASSED_ON_PREFIXES: Final = ("LC_", "XDG_", "CUDA_", "NVIDIA_")
_PROXIES: Final = frozenset({"http_proxy", "https_proxy", "no_proxy", "all_proxy"})
_ERROR_MARK: Final = "Error: "
_SEARCHED_EVENTS: Final = 200
"""Log events at the end of an exited worker's log that are searched for the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts(Holding):
    """The `Handle.facts` of this launcher's workers."""

    process: ProcessId
    log_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """The address, token and lifetime of a launcher's workers."""

    host: str = LOOPBACK
    """Address to listen on."""
    token: str = field(default="", repr=False)
    """Bearer token that the workers require; empty if none is required."""
    dies_with_parent: bool = False
    """True if the kernel kills the workers when this process ends for any reason."""
    given: Given = field(default_factory=Given)
    """GPUs and cores that all workers share, without a `host` that distributes them."""


class LocalLauncher:
    """A `Launcher` that runs workers as local processes."""

    name = "local"

    def __init__(
        self,
        folder: Path,
        *,
        cache_folder: Path,
        environment: Mapping[str, str],
        command: Sequence[str] = WORKER_COMMAND,
        ping_timeout_s: float = PING_TIMEOUT_S,
        now_s: Callable[[], float] = time.time,
        options: "ProcessOptions | None" = None,
        host: HostResources | None = None,
    ) -> None:
        """
        Create a launcher for the workers below a folder.

        Args:
            folder: contains a folder for each worker.
            cache_folder: the cache of fetched artifacts, shared by workers.
            environment: this process's environment; workers get the safe part of it (`worker_environment`).
            command: the worker's command; gets the path of an `Assignment` as last argument.
            ping_timeout_s: the timeout of `/ping`.
            now_s: a clock, seconds since 1970.
            options: address and lifetime of the workers; by default loopback, and longer than this process.
            host: the resources that it distributes to the workers; None: they use what they find.
        """
        self._folder = folder
        self._cache_folder = cache_folder
        self._environment = worker_environment(environment)
        self._command = tuple(command)
        self._ping_timeout_s = ping_timeout_s
        self._now_s = now_s
        self._options = options or ProcessOptions()
        self._host = host
        self._cgroups = WorkerCgroups(host.cgroup) if host is not None and host.cgroup is not None else None
        self._logs = WorkerLogs(folder)
        self._lock = threading.Lock()
        self._ended: dict[str, dict[ProcessId, int | None]] = {}
        """Worker → its ended processes, whose sessions were killed, with the exit codes if known; until `forget`."""
        self._kills: dict[ProcessId, asyncio.TimerHandle] = {}
        self._keeps_spare = False
        self._spare = SpareWorker(self._command, self._environment, folder / "spare.log")
        self._exits = ExitLog(self._logs, now_s=now_s, is_pinged=not self._options.dies_with_parent)

    async def start(self, spec: WorkerSpec) -> Handle:
        """Start a worker; see `Launcher.start`. It is pending while other workers hold the GPUs that it needs."""
        handle = await asyncio.to_thread(self._start, spec)
        if self._keeps_spare:
            await self.keep_spare()
        return handle

    async def keep_spare(self) -> None:
        """Keep a process in reserve for the next worker, from now on."""
        self._keeps_spare = True
        with suppress(OSError):  # the next worker is then started without it
            await asyncio.to_thread(self._spare.prepare)

    async def poll(self, name: str, handle: Handle) -> Observation:
        runs, seen = await asyncio.to_thread(self._look, name, handle)
        if not runs:
            return seen
        phase = seen.phase
        if phase is not WorkerPhase.FETCHING:
            phase = await pinged_phase(self._files(name).ready, handle.url, self._ping_timeout_s)
        gpus = _facts(handle).gpus
        placement = gpus_text(name, gpus, self._host.gpus) if gpus and self._host is not None else ""
        container = "" if phase is WorkerPhase.READY else seen.container  # its report may be older than its `/ping`
        return replace(seen, phase=phase, placement=placement, container=container)

    async def look(self, name: str, handle: Handle) -> Observation:
        """Observe a worker without `/ping`: FETCHING, STARTING (it may be ready by now) or EXITED."""
        return (await asyncio.to_thread(self._look, name, handle))[1]

    async def stop(self, name: str, handle: Handle, *, grace_s: float) -> None:
        """Send SIGTERM once (our server exits at once on a second one), and SIGKILL after `grace_s`."""
        process = _facts(handle).process
        kill_at_s = await asyncio.to_thread(self._send_sigterm, name, process, grace_s)
        if kill_at_s is None:
            return
        if pending := self._kills.pop(process, None):
            pending.cancel()
        delay_s = max(kill_at_s - self._now_s(), 0.0)
        self._kills[process] = asyncio.get_running_loop().call_later(delay_s, self._kill, process)

    async def known(self) -> dict[str, Handle]:
        return await asyncio.to_thread(self._known)

    async def room(self) -> Room:
        """Return what its workers leave of the host's resources, which it distributes."""
        assert self._host is not None
        holdings = await asyncio.to_thread(self._holdings)
        return room_of(self._host, holdings, memory_bytes=await asyncio.to_thread(available_memory_bytes))

    async def forget(self, name: str) -> None:
        await asyncio.to_thread(self._forget, name)

    async def close(self) -> None:
        """Cancel pending SIGKILLs; workers keep running. A later `stop` schedules the SIGKILL again."""
        for pending in self._kills.values():
            pending.cancel()
        self._kills.clear()
        await asyncio.to_thread(self._spare.close)

    def _start(self, spec: WorkerSpec) -> Handle:
        try:
            with self._lock:
                return self._start_process(spec, worker_files(self._folder, spec.name))
        except (OSError, ValueError, ImportError) as error:  # a Ray node without the package for certificates
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise LaunchFailed(f"The worker {spec.name} cannot be started on this host: {reason}.") from error

    def _start_process(self, spec: WorkerSpec, files: WorkerFiles) -> Handle:
        living = self._known()
        if spec.name in living:
            return living[spec.name]
        options = self._options
        given = give(spec, self._host, self._holdings()) if self._host is not None else options.given
        taken = {urlsplit(handle.url).port for handle in living.values()}
        port = next((port for port in free_ports(WORKER_PORTS, options.host) if port not in taken), None)
        if port is None:
            range_of_ports = f"between {WORKER_PORTS.start} and {WORKER_PORTS.stop}. Stop programs that listen there."
            raise LaunchFailed(f"No free port was found on {options.host} {range_of_ports}")
        files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Files of an earlier process of this name would be taken for those of the new one.
        for left_over in (files.handle, files.report, files.ready, files.stopping):
            left_over.unlink(missing_ok=True)
        log_position = self._logs.end_position(spec.name)
        has_certificate = options.host != LOOPBACK and spec.is_own_server
        assignment = Assignment(
            spec=replace(spec, threads=given.num_cores) if given.num_cores else spec,
            port=port,
            cache_folder=str(self._cache_folder),
            log_position=log_position,
            host=options.host,
            token=options.token,
            pin=issue_certificate(files.certificate, options.host) if has_certificate else "",
            parent=process_id(os.getpid()) if options.dies_with_parent else None,
            given=given,
        )
        write_value(files.assignment, assignment)
        variables = gpu_environment(given, self._host) if self._host is not None else {}
        process = None if variables else self._spare.take(files.assignment)
        if process is None:
            process = spawn([*self._command, str(files.assignment)], {**self._environment, **variables}, files.log)
        if self._cgroups is not None:
            self._cgroups.bound(spec.name, process.pid, spec.limits)
        self._exits.saw_running(spec.name)
        handle = local_handle(process, assignment)
        write_value(files.handle, handle)
        return handle

    def _look(self, name: str, handle: Handle) -> tuple[bool, Observation]:
        """Return whether a worker's process runs, and what its folder says of it."""
        files, facts = self._files(name), _facts(handle)
        self._logs.trim(name)
        # In this order: a worker writes its last report before it ends.
        runs = is_running(facts.process)
        report = read_value(files.report, Observation) or Observation(phase=WorkerPhase.STARTING)
        if runs:
            self._exits.saw_running(name)
            return True, Observation(phase=report.phase, notices=report.notices, container=report.container)
        is_first_look = facts.process not in self._ended.get(name, {})
        exit_code = self._clean_up(name, facts.process)
        if read_value(files.handle, Handle) != handle:  # another process of this name has started since
            return False, Observation(phase=WorkerPhase.EXITED, exit_code=exit_code)
        exit_code = report.exit_code if exit_code is None else exit_code
        ended_in = report.ended_in if report.phase is WorkerPhase.EXITED else report.phase
        cause = self._exits.cause(name, exit_code, was_stopped=files.stopping.exists())
        if is_first_look:
            self._exits.note(name, exit_code, cause, phase="ready" if files.ready.exists() else str(ended_in or ""))
        message = last_error_line(self._logs, name, facts.log_position)
        seen = replace(report, phase=WorkerPhase.EXITED, exit_code=exit_code, ended_in=ended_in)
        return False, replace(seen, cause=cause, message=message)

    def _clean_up(self, name: str, process: ProcessId) -> int | None:
        """Kill what an ended worker left behind, once; return its exit code, if it was a child of this process."""
        ended = self._ended.setdefault(name, {})
        exit_code = reap(process)
        if process not in ended:
            kill_session(process)
            self._remove_cgroup(name)
        if exit_code is not None or process not in ended:
            ended[process] = exit_code
        return ended[process]

    def _send_sigterm(self, name: str, process: ProcessId, grace_s: float) -> float | None:
        """Send SIGTERM; returns when SIGKILL is due, seconds since 1970, or None if the worker has ended."""
        files = self._files(name)
        if not is_running(process):
            return None
        kill_at_s = self._now_s() + grace_s
        with suppress(OSError, ValueError):
            return min(kill_at_s, float(files.stopping.read_text()))
        with suppress(OSError):  # a full disk must not prevent the stop
            write_atomically(files.stopping, str(kill_at_s).encode())
        send_signal(process, signal.SIGTERM)
        return kill_at_s

    def _kill(self, process: ProcessId) -> None:
        self._kills.pop(process, None)
        kill_session(process)

    def _known(self) -> dict[str, Handle]:
        return {name: handle for name, handle in self._handles().items() if is_running(_facts(handle).process)}

    def _handles(self) -> dict[str, Handle]:
        """Return the handle of each folder's newest process, which may have ended."""
        found = {path.parent.name: read_value(path, Handle) for path in sorted(self._folder.glob("*/handle.json"))}
        return {name: handle for name, handle in found.items() if handle is not None and handle.launcher == self.name}

    def _holdings(self) -> list[Holding]:
        """Return what workers hold: GPUs until all of a worker's processes have ended, cores until it is stopped."""
        holdings: list[Holding] = []
        for name, handle in self._handles().items():
            facts = _facts(handle)
            has_cores = is_running(facts.process) and not self._files(name).stopping.exists()
            if has_cores or (facts.gpus and is_session_running(facts.process)):
                holdings.append(facts if has_cores else replace(facts, num_cores=0))
        return holdings

    def _remove_cgroup(self, name: str) -> None:
        if self._cgroups is not None:
            self._cgroups.remove(name)

    def _forget(self, name: str) -> None:
        files = self._files(name)
        if name in self._known():
            get_logger().warning("worker.not_forgotten", worker=name, message="It still runs.")
            return
        self._remove_cgroup(name)
        self._ended.pop(name, None)
        self._exits.forget(name)
        if files.folder.is_dir():
            shutil.rmtree(files.folder)

    def _files(self, name: str) -> WorkerFiles:
        return worker_files(self._folder, name)


def worker_environment(platform: Mapping[str, str]) -> dict[str, str]:
    """
    Return the variables of a platform's environment that its workers get; each adds `WorkerSpec.environment` itself.

    Code in a worker belongs to its user, not to the platform: only variables that are known to be harmless and needed
    are passed on, not the platform's credentials and settings.
    """
    kept = {
        name: value
        for name, value in platform.items()
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES) or name.lower() in _PROXIES
    }
    return kept | {"PYTHONUNBUFFERED": "1"}


def local_handle(process: ProcessId, assignment: Assignment) -> Handle:
    spec, given = assignment.spec, assignment.given
    facts = _Facts(
        process=process,
        log_position=assignment.log_position,
        gpus=given.gpus,
        num_cores=given.num_cores,
        group=spec.group,
        revision=spec.revision,
    )
    place = f"{f'[{assignment.host}]' if ':' in assignment.host else assignment.host}:{assignment.port}"
    url = f"https://{place}#{assignment.pin}" if assignment.pin else f"http://{place}"
    values = msgspec.json.decode(msgspec.json.encode(facts))  # as they are read back, for comparisons
    return Handle(launcher=LocalLauncher.name, url=url, facts=values, token=assignment.token)


def last_error_line(logs: WorkerLogs, name: str, log_position: int) -> str:
    """Return the text of the last `Error: …` line in a worker's log since a position; empty if there is none."""
    for event in reversed(logs.read(name, limit=_SEARCHED_EVENTS, is_backward=True)):
        if event.position < log_position:
            break
        if event.message.startswith(_ERROR_MARK):
            return event.message.removeprefix(_ERROR_MARK).strip()
    return ""


def worker_process(handle: Handle) -> ProcessId:
    return _facts(handle).process


def _facts(handle: Handle) -> _Facts:
    return msgspec.convert(handle.facts, _Facts)
