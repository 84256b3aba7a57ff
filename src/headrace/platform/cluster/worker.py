"""
The worker process: fetches the artifacts, then becomes the model server, or the command of a custom image.

Its output is its log. A failure is one line there, `Error: …`, which the launcher reads after the process has ended;
so it is found no matter how the process ended.
"""

import io
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn

from headrace.core.errors import HeadraceError, SettingsError
from headrace.core.gpus import VISIBLE_VARIABLE
from headrace.core.processes import end_with, protect_memory, this_process
from headrace.core.telemetry import get_logger, setup_logging
from headrace.platform.cluster.containers import environment_lines, pull_image, run_command, run_engine
from headrace.platform.cluster.host_resources import chosen_of_given
from headrace.platform.cluster.launcher import ContainerImage, Observation, WorkerPhase, WorkerSpec
from headrace.platform.cluster.local import local_handle
from headrace.platform.cluster.worker_files import (
    LOOPBACK,
    Assignment,
    WorkerFiles,
    read_value,
    write_atomically,
    write_value,
)
from headrace.serving.artifacts.content_cache import ContentCache
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed
from headrace.serving.artifacts.fetcher import Fetched, Fetcher, source_of
from headrace.serving.artifacts.object_grants import GrantedObjects
from headrace.serving.artifacts.sources import ArtifactSource, ObjectGrant
from headrace.serving.settings.code_settings import ISOLATION_VARIABLES
from headrace.serving.settings.sources import names_model
from headrace.serving.settings.values import env_name
from headrace_handler.policy import decides_for_server, restored
from headrace_handler.sandbox import LATER

EXIT_FAILED: Final = 1
EXIT_USER_ERROR: Final = 2
_OOM_SCORE: Final = "500"
"""Under memory pressure, the kernel kills workers before the platform. Source: `proc(5)`, `oom_score_adj`."""
_CHANNELS: Final = "additional-model-data-sources"
_SUBMIT_DIRECTORY: Final = "SAGEMAKER_SUBMIT_DIRECTORY"
_CODE_FOLDERS: Final = env_name("code_folders")
"""The folder of a user's code, or its archive in object storage. Source: sagemaker-containers, `_params.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWorker:
    """A worker whose artifacts have been fetched."""

    assignment: Assignment
    model_folder: Path | None
    """The equivalent of `/opt/ml/model` in a container; None without artifacts."""
    empty_folder: Path
    """A folder for a model without artifacts."""
    certificate: Path | None = None
    """Its certificate and the key, if it serves HTTPS."""
    channels: Mapping[str, Path] = field(default_factory=dict)
    """Folders of AdditionalModelDataSources, by channel."""
    fetch_model: Callable[[str], Path]
    """Fetches a model that the settings name by an `s3://` URI; returns its folder."""
    fetch_adapter: Callable[[str, ObjectGrant | None], Path]
    """Fetches the artifacts of an adapter while the server runs; returns their folder. Callable from any thread."""
    report_notices: Callable[[Sequence[str]], None]
    """Reports settings that could not be honoured, in sentences, for the description of the endpoint."""


Serve = Callable[[PreparedWorker], int]
"""Runs the model server until it is stopped; returns the exit code. Logs the reason of a failure itself."""


def run_worker(assignment_path: Path, serve: Serve) -> int:
    setup_logging(format="json")
    files = WorkerFiles(assignment_path.parent)
    try:
        code = _Worker(files, _read_assignment(assignment_path)).run(serve)
    except FetchFailed as error:
        code = _fail(str(error), EXIT_USER_ERROR)
    except HeadraceError as error:
        code = _fail(error.message, EXIT_USER_ERROR)
    except OSError as error:
        code = _fail(f"The worker failed on {error.filename}: {error.strerror or error}.", EXIT_FAILED)
    except Exception as error:  # noqa: BLE001 -- an edge: any failure has to be in the log
        traceback.print_exc()
        code = _fail(f"Internal error ({type(error).__name__}: {error}).", EXIT_FAILED)
    last = read_value(files.report, Observation)
    with suppress(OSError):
        phase = last.phase if last is not None else None
        seen = last or Observation(phase=WorkerPhase.EXITED)
        write_value(files.report, replace(seen, phase=WorkerPhase.EXITED, exit_code=code, ended_in=phase))
    return code


def _read_assignment(path: Path) -> Assignment:
    assignment = read_value(path, Assignment)
    if assignment is None:
        raise SettingsError(
            f"{path} cannot be read as a worker's assignment; expected a file that `headrace up` has written."
        )
    return assignment


class _Worker:
    def __init__(self, files: WorkerFiles, assignment: Assignment) -> None:
        self._files = files
        self._spec = assignment.spec
        self._assignment = assignment
        self._notices: tuple[str, ...] = ()
        self._empty_notices: tuple[str, ...] = ()
        self._cache = ContentCache(Path(assignment.cache_folder))
        self._fetcher = self._make_fetcher()

    def run(self, serve: Serve) -> int:
        if self._assignment.parent is not None:
            end_with(self._assignment.parent)
        process = this_process()
        handle = local_handle(process, self._assignment)
        write_value(self._files.handle, handle)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
        protect_memory()  # afterwards: the files of this process in /proc then belong to root
        if self._spec.image is None:
            _set_environment(self._spec)  # not for an engine of containers, which runs on this host with our rights
        get_logger().info("worker.started", worker=self._spec.name, pid=process.pid, url=handle.url)
        if self._spec.containers:
            from headrace.platform.cluster.container_group import run_group

            self._report(WorkerPhase.FETCHING)
            return run_group(self._assignment, self._files)
        if self._spec.models is not None:
            from headrace.platform.cluster.model_host.serve import serve_models

            self._report(WorkerPhase.STARTING)
            return serve_models(self._assignment, self._files, os.environ)
        if self._spec.image is not None:
            self._pull(self._spec.image)
        fetched = self._fetch_all(self._spec.artifacts) if self._spec.artifacts else Fetched()
        self._report(WorkerPhase.STARTING)
        if self._spec.image is not None:
            self._exec_container(self._spec.image, fetched)
        if self._spec.command:
            self._exec_command(fetched)
        # Toolkits fetch the code that this variable names at their start: it then names the folder.
        code = self._spec.environment.get(_SUBMIT_DIRECTORY, "").strip()
        if "://" in code:
            os.environ[_SUBMIT_DIRECTORY] = folder = str(self._fetch_model(code))
            os.environ[_CODE_FOLDERS] = ",".join(filter(None, (os.environ.get(_CODE_FOLDERS), folder)))
        empty_folder = self._files.scratch / "model"
        empty_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        prepared = PreparedWorker(
            assignment=self._assignment,
            model_folder=self._link_channels(fetched),
            channels=fetched.channels,
            empty_folder=empty_folder,
            certificate=self._files.certificate if self._assignment.pin else None,
            fetch_model=self._fetch_model,
            fetch_adapter=self._fetch_adapter,
            report_notices=self._report_notices,
        )
        return serve(prepared)

    def _fetch_all(self, sources: Sequence[ArtifactSource]) -> Fetched:
        """
        Fetch the artifacts; the S3 prefix may be empty if the environment names a model.

        The `ModelBuilder` of SageMaker SDK 3 invents a prefix for `HF_MODEL_ID` and uploads nothing there.
        """
        self._report(WorkerPhase.FETCHING)
        fetched = self._fetcher.fetch_all(sources, may_be_empty=names_model(self._spec.environment))
        empty = [source.uri for source in sources if source.channel is None and fetched.model is None]
        self._empty_notices = tuple(
            f"There are no objects below {uri}: the model that the environment names is served." for uri in empty
        )
        return fetched

    def _fetch_model(self, uri: str) -> Path:
        self._report(WorkerPhase.FETCHING)
        folder = self._fetcher.fetch(source_of(uri))
        self._report(WorkerPhase.STARTING)
        return folder

    def _fetch_adapter(self, uri: str, grant: ObjectGrant | None) -> Path:
        return self._make_fetcher(*([grant] if grant is not None else [])).fetch(source_of(uri))

    def _make_fetcher(self, *more: ObjectGrant) -> Fetcher:
        """Return a fetcher whose time begins now."""
        return Fetcher(
            objects=lambda deadline: GrantedObjects((*self._spec.grants, *more), deadline),
            cache=self._cache,
            scratch=self._files.scratch,
            deadline=Deadline(self._spec.artifact_timeout_s),
        )

    def _link_channels(self, fetched: Fetched) -> Path | None:
        """Link the channels into the worker's own folder; returns the model's folder."""
        for channel, folder in fetched.channels.items():
            link = self._files.folder / _CHANNELS / channel
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(folder)
        return fetched.model

    def _report_notices(self, notices: Sequence[str]) -> None:
        self._notices = (*self._empty_notices, *notices)
        self._report(WorkerPhase.STARTING)

    def _report(self, phase: WorkerPhase) -> None:
        write_value(self._files.report, Observation(phase=phase, notices=self._notices))

    def _exec_command(self, fetched: Fetched) -> NoReturn:
        """Replace this process by the command of a custom image."""
        model, host, token = self._link_channels(fetched), self._assignment.host, self._assignment.token
        if os.environ.get(env_name("sandbox")) == "require":
            raise SettingsError(
                "The image's command runs as it is, and sandbox is require: code runs in a sandbox only. Run the image "
                "as a container, or start `headrace up` with --sandbox auto."
            )
        if host != LOOPBACK and not any("{host}" in part for part in self._spec.command):
            raise SettingsError(
                f"The image's command has no {{host}}, so it would not listen on {host}, this node's address. Let it "
                "listen there and require the key in HEADRACE_API_KEY, or choose one of Headrace's images."
            )
        facts = {"{host}": host, "{port}": str(self._assignment.port), "{model}": str(model or "")}
        command = list(self._spec.command)
        for placeholder, value in facts.items():
            command = [part.replace(placeholder, value) for part in command]
        # Headrace's own server in a custom image would otherwise listen on all addresses, as in a container.
        environment = {
            **restored(os.environ),
            "HEADRACE_HOST": host,
            "SAGEMAKER_BIND_TO_PORT": str(self._assignment.port),
        }
        if token:
            environment["HEADRACE_API_KEY"] = token
        if model is not None:
            environment |= {"SM_MODEL_DIR": str(model), "HEADRACE_MODEL_FOLDER": str(model)}
        try:
            self._exec(command, environment)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"The command {command[0]!r} of the image cannot be started: {error}. Check the file of custom images."
            ) from error

    def _pull(self, image: ContainerImage) -> None:
        """Pull the image before the health check's time begins, within the time for downloads."""
        self._report(WorkerPhase.FETCHING)
        try:
            pull_image(image.engine, image.uri, self._spec.artifact_timeout_s)
        except (HeadraceError, OSError, subprocess.TimeoutExpired) as error:
            self._report(WorkerPhase.STARTING)  # SageMaker's sentence about failed downloads is about model data
            if isinstance(error, HeadraceError):
                raise
            raise SettingsError(f"{image.engine.name} cannot pull the image {image.uri}: {error}.") from error

    def _exec_container(self, image: ContainerImage, fetched: Fetched) -> NoReturn:
        """Replace this process by the container engine, which runs the image in the foreground."""
        write_atomically(self._files.environment, environment_lines(self._spec.environment).encode())
        command = run_command(
            image,
            self._assignment,
            model=fetched.model,
            channels=fetched.channels,
            environment_file=self._files.environment,
        )
        try:
            run_engine(image.engine, "rm", "--force", image.name)
            self._exec(command, image.engine.variables)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise SettingsError(f"{image.engine.name} cannot run the image {image.uri}: {error}.") from error

    def _exec(self, command: list[str], environment: Mapping[str, str]) -> NoReturn:
        """Replace this process by a program that finds the fetched files; raises OSError or ValueError."""
        self._cache.keep_over_exec()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execvpe(command[0], command, environment)  # noqa: S606 -- the command is configuration of this host's owner


def _set_environment(spec: WorkerSpec) -> None:
    for name, value in spec.environment.items():
        if name in ISOLATION_VARIABLES:
            raise SettingsError(
                f"The model's Environment sets {name}. Only the owner of the platform may: remove it there, or start "
                "`headrace up` with the setting."
            )
        is_choice = name == VISIBLE_VARIABLE and name in os.environ
        own = f"{LATER}{name}" if decides_for_server(name) else name
        try:
            os.environ[own] = chosen_of_given(os.environ[name], value) if is_choice else value
        except (ValueError, OSError) as error:
            raise SettingsError(f"The environment variable {name!r} cannot be set: {error}.") from error
    if spec.threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(spec.threads))


def _fail(sentence: str, code: int) -> int:
    print(f"Error: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
    return code


class LogStream(io.TextIOBase):
    """An unbuffered text stream to a descriptor; text that cannot be written is dropped."""

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        rest = text.encode(errors="backslashreplace")
        with suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        return len(text)


def protect_output() -> None:
    """Replace stdout and stderr so that logging never fails."""
    sys.stdout.flush()
    sys.stderr.flush()
    sys.stdout, sys.stderr = LogStream(1), LogStream(2)
