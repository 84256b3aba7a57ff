"""
What happens inside a worker's process: fetch the artifacts, then become the model server, or an own image's command.

Its output is its log. What goes wrong is one sentence there, `Error: …`, which the launcher finds when the process
has ended, however it ended; nothing has to be handed over at the end.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from headrace.cluster.artifacts import Fetched, Fetcher
from headrace.cluster.content_cache import ContentCache
from headrace.cluster.fetch_bounds import Deadline, FetchFailed
from headrace.cluster.launcher import ArtifactSource, WorkerPhase, WorkerSpec
from headrace.cluster.local import local_handle
from headrace.cluster.processes import end_with, process_id
from headrace.cluster.worker_files import LOOPBACK, Assignment, Report, WorkerFiles, read_value, write_value
from headrace.core.errors import HeadraceError, SettingsError
from headrace.core.telemetry import get_logger, setup_logging
from headrace.settings.sources import names_model

EXIT_FAILED: Final = 1
EXIT_USER_ERROR: Final = 2
_OOM_SCORE: Final = "500"
"""When memory is short, a worker goes before the platform. Source: Linux `proc(5)`, `oom_score_adj`."""
_CHANNELS: Final = "additional-model-data-sources"
_SINGLE_FILES: Final = (".gguf",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A worker whose artifacts are here."""

    spec: WorkerSpec
    host: str = LOOPBACK
    """Address to listen on."""
    port: int
    """To listen on."""
    token: str = field(default="", repr=False)
    """Bearer token that requests must bring; empty: none."""
    model_folder: Path | None
    """What `/opt/ml/model` is in a container; None without artifacts."""
    fetch_model: Callable[[str], Path]
    """Fetches a model that the settings name by `s3://`; returns its folder."""
    tell: Callable[[Sequence[str]], None]
    """Says what could not be honoured, in sentences; whoever describes the endpoint will see it."""


Serve = Callable[[Prepared], int]
"""Runs the model server until it is asked to stop; returns the exit code. It writes down why it failed."""


def run_worker(assignment_path: Path, serve: Serve) -> int:
    """Be a worker; returns the exit code."""
    setup_logging(format="json")
    files = WorkerFiles(assignment_path.parent)
    try:
        code = _Worker(files, _read_assignment(assignment_path)).run(serve)
    except FetchFailed as error:
        code = _fail(str(error), EXIT_USER_ERROR)
    except HeadraceError as error:
        code = _fail(error.message, EXIT_USER_ERROR)
    except OSError as error:
        code = _fail(f"The worker cannot go on: {error.strerror or error}: {error.filename}.", EXIT_FAILED)
    except Exception as error:  # noqa: BLE001 -- an edge: whatever it was has to be in the log
        traceback.print_exc()
        code = _fail(f"Something broke that should not ({type(error).__name__}: {error}).", EXIT_FAILED)
    told = read_value(files.report, Report)
    with suppress(OSError):
        notices, phase = (told.notices, told.phase) if told is not None else ((), None)
        write_value(files.report, Report(phase=WorkerPhase.EXITED, exit_code=code, ended_in=phase, notices=notices))
    return code


class _Worker:
    def __init__(self, files: WorkerFiles, assignment: Assignment) -> None:
        self._files = files
        self._spec = assignment.spec
        self._assignment = assignment
        self._notices: tuple[str, ...] = ()
        self._empty_notices: tuple[str, ...] = ()
        self._cache = ContentCache(Path(assignment.cache_folder))
        self._fetcher = Fetcher(
            s3=self._spec.s3,
            cache=self._cache,
            scratch=files.scratch,
            deadline=Deadline(self._spec.artifact_timeout_s),
        )

    def run(self, serve: Serve) -> int:
        if self._assignment.parent is not None:
            end_with(self._assignment.parent)
        process = process_id(os.getpid())
        assert process is not None, "/proc is there on Linux"
        handle = local_handle(process, self._assignment)
        write_value(self._files.handle, handle)
        _go_first_when_memory_is_short()
        _set_environment(self._spec)
        get_logger().info("worker.started", worker=self._spec.name, pid=process.pid, url=handle.url)
        fetched = self._fetch_all(self._spec.artifacts) if self._spec.artifacts else Fetched()
        self._report(WorkerPhase.STARTING)
        if self._spec.command:
            self._become_command(fetched)
        prepared = Prepared(
            spec=self._spec,
            host=self._assignment.host,
            port=self._assignment.port,
            token=self._assignment.token,
            model_folder=self._as_in_container(fetched),
            fetch_model=self._fetch_model,
            tell=self._tell,
        )
        return serve(prepared)

    def _fetch_all(self, sources: Sequence[ArtifactSource]) -> Fetched:
        """
        Fetch the artifacts; the S3 prefix may be empty where the environment names a model.

        The `ModelBuilder` of the SageMaker SDK 3 makes up a prefix for `HF_MODEL_ID` and uploads nothing there.
        """
        self._report(WorkerPhase.FETCHING)
        fetched = self._fetcher.fetch_all(sources, may_be_empty=names_model(self._spec.environment))
        empty = [source.uri for source in sources if source.channel is None and fetched.model is None]
        self._empty_notices = tuple(
            f"There is nothing below {uri}: the model that the environment names is served." for uri in empty
        )
        return fetched

    def _fetch_model(self, uri: str) -> Path:
        self._report(WorkerPhase.FETCHING)
        is_archive = uri.endswith((".tar.gz", ".tgz"))
        is_prefix = not is_archive and not uri.endswith(_SINGLE_FILES)
        folder = self._fetcher.fetch(ArtifactSource(uri=uri, is_prefix=is_prefix, is_archive=is_archive))
        self._report(WorkerPhase.STARTING)
        return folder

    def _as_in_container(self, fetched: Fetched) -> Path | None:
        """Channels lie beside the model's folder, as links in the worker's own folder."""
        for channel, folder in fetched.channels.items():
            link = self._files.folder / _CHANNELS / channel
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(folder)
        return fetched.model

    def _tell(self, notices: Sequence[str]) -> None:
        self._notices = (*self._empty_notices, *notices)
        self._report(WorkerPhase.STARTING)

    def _report(self, phase: WorkerPhase) -> None:
        write_value(self._files.report, Report(phase=phase, notices=self._notices))

    def _become_command(self, fetched: Fetched) -> NoReturn:
        """Replace this process by the command of an own image."""
        model, host, token = self._as_in_container(fetched), self._assignment.host, self._assignment.token
        if host != LOOPBACK and not any("{host}" in part for part in self._spec.command):
            raise SettingsError(
                f"The image's command does not say {{host}}, so that it cannot listen on {host}, where this node is "
                "reached. Let it listen there and ask for the key in HEADRACE_API_KEY, or choose one of our own images."
            )
        facts = {"{host}": host, "{port}": str(self._assignment.port), "{model}": str(model or "")}
        command = [_filled_in(part, facts) for part in self._spec.command]
        environment = {**os.environ, "SAGEMAKER_BIND_TO_PORT": str(self._assignment.port)}
        if token:
            environment |= {"HEADRACE_HOST": host, "HEADRACE_API_KEY": token}
        if model is not None:
            environment |= {"SM_MODEL_DIR": str(model), "HEADRACE_MODEL_FOLDER": str(model)}
        self._cache.keep_over_exec()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            os.execvpe(command[0], command, environment)  # noqa: S606 -- the owner of this host configured it
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"The command {command[0]!r} of the image cannot be started: {error}. Check the file of own images."
            ) from error


def _read_assignment(path: Path) -> Assignment:
    assignment = read_value(path, Assignment)
    if assignment is None:
        raise SettingsError(f"{path} cannot be read as a worker's assignment. `headrace up` writes and runs these.")
    return assignment


def _filled_in(text: str, facts: dict[str, str]) -> str:
    for placeholder, value in facts.items():
        text = text.replace(placeholder, value)
    return text


def _set_environment(spec: WorkerSpec) -> None:
    for name, value in spec.environment.items():
        try:
            os.environ[name] = value
        except (ValueError, OSError) as error:
            raise SettingsError(f"The environment variable {name!r} cannot be set: {error}.") from error
    if spec.threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(spec.threads))


def _go_first_when_memory_is_short() -> None:
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def _fail(sentence: str, code: int) -> int:
    print(f"Error: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
    return code
