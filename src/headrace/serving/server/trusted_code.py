"""
A server that trusts a checkpoint's code, whole in a sandbox: the code runs in the process of the engine.

This process finds the model and listens; then it starts the server (`isolated`) in a sandbox, with the listener and a
plan in memory, passes signals on, and waits. It never reads the checkpoint's code.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from headrace.core.client_text import escaped
from headrace.core.engine_stats import EngineStats
from headrace.core.errors import SettingsError
from headrace.core.generation import ModelInfo
from headrace.core.processes import ProcessId, protect_memory, this_process
from headrace.core.progress import Progress
from headrace.inference.backends.choice import BackendChoice
from headrace.inference.models.sources import Located
from headrace.serving.handlers.isolation import Isolation, python_folders
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.http.otlp import SECRETS as EXPORT_SECRETS
from headrace.serving.http.tls import bind, url_of
from headrace.serving.server import sandbox_output
from headrace.serving.server.adapter_routes import allowed_folders
from headrace.serving.server.batch_routes import folder_of
from headrace.serving.server.engine_config import choose_engine, trusting_setting
from headrace.serving.settings.container_names import Notice
from headrace.serving.settings.server_settings import ServerSettings
from headrace_handler.namespaces import end_as
from headrace_handler.policy import deferred, restored

RUNS_CODE: Final = frozenset({"transformers", "vllm"})
"""The backends that run Python of a checkpoint."""
_INSIDE: Final = ("-P", "-m", "headrace.serving.server.isolated")
_CERTIFICATE: Final = ("tls_cert", "tls_key")
_PATH_SETTINGS: Final = ("chat_template", "generation_config", *_CERTIFICATE)
"""Settings that may name a file or folder that the server reads; `adapter` and `adapter_folders` name more."""
_VARIABLES: Final = frozenset(
    (
        *("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HEADRACE_ISA", "HF_ENDPOINT", *EXPORT_SECRETS),
        *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    )
)
_PREFIXES: Final = (
    *("LC_", "OMP_", "KMP_", "MKL_", "GOMP_", "OPENBLAS_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_"),
    *("VLLM_", "TRANSFORMERS_", "TOKENIZERS_", "SAFETENSORS_", "MALLOC_", "OTEL_SERVICE_", "OTEL_RESOURCE_"),
)
_WITHHELD_ENDS: Final = ("_CACHE", "_CACHE_DIR", "_CACHE_ROOT", "TORCH_HOME", "_KEY", "_TOKEN")
"""Of those with a prefix: folders that do not exist in the sandbox, and secrets."""
_MAX_EVENT_BYTES: Final = 1 << 20


OnReady = Callable[[str, ModelInfo, EngineStats], None]


@dataclass(frozen=True, slots=True)
class Trusted:
    """A model whose code may run, and the backend that runs it."""

    located: Located
    choice: BackendChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The server to run in the sandbox."""

    settings: ServerSettings
    located: Located
    notices: Sequence[Notice]
    parent: ProcessId
    """The process to end with."""
    listener: int
    """Descriptor of the socket that listens."""
    events: int
    """Descriptor to which the server writes an `Event` a line, until it is ready."""
    formatters: HandlerSpec | None = None
    fetches_adapters: bool = False
    """The platform loads adapters, by the locations of their artifacts."""
    withheld: Sequence[str] = ()
    """Names of variables that the server does not get."""


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A report of the server in the sandbox: progress, or the end of its start."""

    task: str = ""
    completed: int = 0
    total: int = 0
    unit: str = "bytes"
    info: ModelInfo | None = None
    stats: EngineStats | None = None


@dataclass(frozen=True, slots=True)
class IsolatedServer:
    """A server in a sandbox, and the pipe with its reports."""

    process: "subprocess.Popen[bytes]"
    events: BinaryIO
    url: str


def write_plan(plan: Plan) -> int:
    """Return the descriptor of a file in memory with a plan."""
    descriptor = os.memfd_create("headrace-plan")
    values = msgspec.to_builtins(plan, enc_hook=str)
    os.write(descriptor, json.dumps(values).encode())  # msgspec's own takes no paths that are not UTF-8
    return descriptor


def read_plan(descriptor: int) -> Plan:
    with open(descriptor, "rb") as file:
        file.seek(0)
        return msgspec.convert(json.loads(file.read()), type=Plan, dec_hook=_as_kind)


def _as_kind(kind: type, value: Any) -> Any:
    return value if kind is object else kind(value)  # else a path


def needs_isolation(settings: ServerSettings) -> bool:
    """Return whether code of the checkpoint may run in the server, which is not in a sandbox yet."""
    return settings.sandbox != "off" and bool(trusting_setting(settings))


def find_trusted(settings: ServerSettings, progress: Progress) -> Trusted | None:
    """
    Find the model and choose its backend; None if that runs no code of the checkpoint.

    Raises:
        UserError: as `load_backend`.
    """
    protect_memory()
    located, choice = choose_engine(settings, progress)
    return Trusted(located, choice) if choice.name in RUNS_CODE else None


def run_isolated(
    settings: ServerSettings,
    model: Trusted,
    *,
    notices: Sequence[Notice],
    progress: Progress,
    on_ready: OnReady | None = None,
    formatters: HandlerSpec | None = None,
    fetches_adapters: bool = False,
) -> int:
    """
    Serve in a sandbox until a signal stops the server; return the exit code, or end as the server did by a signal.

    `on_ready` is called after the first token, with the URL, the model and the engine's size. The model's `formatters`
    run in the same sandbox. `fetches_adapters`: the platform loads adapters, by the locations of their artifacts.

    Raises:
        SettingsError: a setting needs what the sandbox does not have, or the address cannot be used.
    """
    with (
        _forwarding() as start,
        started_server(
            settings,
            model,
            notices=notices,
            formatters=formatters,
            fetches_adapters=fetches_adapters,
            start=start,
        ) as server,
    ):
        for event in events_of(server.events):
            handle_event(event, server.url, progress, on_ready)
        code = server.process.wait()
    return code if code >= 0 else end_as(code)


@contextmanager
def started_server(
    settings: ServerSettings,
    model: Trusted,
    *,
    notices: Sequence[Notice] = (),
    formatters: HandlerSpec | None = None,
    fetches_adapters: bool = False,
    start: Callable[..., "subprocess.Popen[bytes]"] = subprocess.Popen,
    outputs: tuple[int, int] = (1, 2),
) -> Iterator[IsolatedServer]:
    """
    Start a server in a sandbox, as `run_isolated` describes; the caller waits for its end.

    `outputs`: the descriptors that get what it writes to stdout and stderr.
    """
    _check(settings)
    given = restored(os.environ)
    variables = _environment(given)
    with ExitStack() as stack:
        listener = stack.enter_context(bind(settings.host, settings.port))
        events, events_inside = os.pipe()
        reader = stack.enter_context(open(events, "rb"))  # noqa: PTH123 -- a descriptor
        placed = _with_absolute_paths(settings, is_managed=fetches_adapters)
        if fetches_adapters:
            _refuse_outside(placed, model.located.path)
        scratch = tempfile.mkdtemp(prefix="headrace-code-")
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        inside = replace(placed, sandbox="off", log_format=_log_format(settings))  # there is no sandbox inside of it
        plan = Plan(
            settings=inside,
            located=replace(model.located, path=model.located.path.absolute()),
            notices=notices,
            parent=this_process(),
            listener=listener.fileno(),
            events=events_inside,
            formatters=formatters and replace(formatters, sandbox=None, container_folders={}, cache_locks=()),
            fetches_adapters=fetches_adapters,
            withheld=sorted(given.keys() - variables.keys()),
        )
        descriptor = write_plan(plan)
        stack.callback(os.close, descriptor)
        process = start(
            [*_runner(placed, model, formatters, scratch), sys.executable, *_INSIDE, str(descriptor)],
            env=deferred(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[plan.listener, events_inside, descriptor],
            start_new_session=True,  # a signal from the terminal reaches it once, through this process
        )
        pipes = [stack.enter_context(pipe) for pipe in (process.stdout, process.stderr) if pipe is not None]
        stack.callback(sandbox_output.finish, sandbox_output.relay(zip(pipes, outputs, strict=True)))
        os.close(events_inside)
        url = url_of(listener, is_tls=settings.tls_cert is not None)
        listener.close()
        yield IsolatedServer(process, reader, url)


def _check(settings: ServerSettings) -> None:
    if settings.code_network != "all" and settings.otlp_traces_endpoint is not None:
        raise SettingsError(
            f"otlp_traces_endpoint is set, code_network is {settings.code_network}, and trust_remote_code is true; "
            "expected code_network all: the server runs in the sandbox of the checkpoint's code, and cannot reach the "
            "receiver of traces. Remove one of them.",
            name="otlp_traces_endpoint",
        )


def _environment(server: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the server in the sandbox: the checkpoint's code reads them."""
    kept = {
        name: value
        for name, value in server.items()
        if name in _VARIABLES
        or name.lower() in _VARIABLES
        or (name.startswith(_PREFIXES) and not name.endswith(_WITHHELD_ENDS))
    }
    return kept | {"PYTHONUNBUFFERED": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def _with_absolute_paths(settings: ServerSettings, *, is_managed: bool) -> ServerSettings:
    """Return the settings for another current folder, with the folder of batches, which is made."""
    changes: dict[str, Any] = {}
    for name in _PATH_SETTINGS:
        value = getattr(settings, name)
        if value is not None and _exists(value):
            changes[name] = type(value)(_absolute(value))
    adapters = [entry.partition("=") for entry in settings.adapter]
    changes["adapter"] = tuple(f"{name}={_absolute(folder.strip())}" for name, _, folder in adapters)
    changes["adapter_folders"] = tuple(map(str, allowed_folders(settings)))
    batches = folder_of(settings).absolute() if settings.batch_bytes and not is_managed else None
    if batches is not None:
        batches.mkdir(mode=0o700, parents=True, exist_ok=True)
    return replace(settings, **changes, batch_folder=batches)


def _named_paths(settings: ServerSettings) -> dict[Path, str]:
    """Return the files and folders that settings with absolute paths name for reading, with the settings' names."""
    named = {name: getattr(settings, name) for name in _PATH_SETTINGS}
    found = {Path(value): name for name, value in named.items() if str(value).startswith("/") and _exists(value)}
    found |= {Path(entry.partition("=")[2]): "adapter" for entry in settings.adapter}
    return found | {Path(path): "adapter_folders" for path in settings.adapter_folders}


def _absolute(path: str | Path) -> Path:
    return Path(path).expanduser().absolute()


def _exists(value: str | Path) -> bool:
    try:
        return Path(value).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # a template, not a path
        return False


def _refuse_outside(settings: ServerSettings, model: Path) -> None:
    """
    Refuse paths outside of the model in the settings of a worker, which its environment and its files decide.

    The certificate is the platform's: a worker takes no other.
    """
    for path, name in _named_paths(settings).items():
        if name not in _CERTIFICATE and not path.resolve().is_relative_to(model.resolve()):
            raise SettingsError(
                f"{name} is {path} and trust_remote_code is true; expected a path in the model's folder: its code "
                "would read the other one. Put the file there.",
                name=name,
            )


def _runner(settings: ServerSettings, model: Trusted, spec: HandlerSpec | None, scratch: str) -> tuple[str, ...]:
    """Return the command that runs a program in the sandbox of this server."""
    reads = [model.located.path, *_named_paths(settings), *python_folders(Path(sys.executable))]
    writes = [settings.batch_folder] if settings.batch_folder is not None else []
    sandbox = None if spec is None else spec.sandbox
    if sandbox is not None:
        reads += map(Path, sandbox.read)
        writes += map(Path, sandbox.write)
    folders = {} if spec is None else spec.container_folders
    # The listener belongs to the network outside, and could be connected there; vLLM's processes need connections.
    connects = settings.code_network == "all" or model.choice.name == "vllm"
    return Isolation.of(settings).command(reads, writes, folders, scratch=scratch, connects=connects)


@contextmanager
def _forwarding() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Yield `subprocess.Popen`; signals that stop a server go to the process that it has started, or will start."""
    early: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _frame: object) -> None:
        for process in started:
            process.send_signal(number)
        if not started:
            early.append(number)

    def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(command, **options)  # noqa: S603 -- this package's own program
        started.append(process)
        for number in early:
            process.send_signal(number)
        return process

    earlier = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield start
    finally:
        for process in started:
            process.kill()  # if this process failed; everything in the sandbox ends with it
            process.wait()
        for number, handler in earlier.items():
            signal.signal(number, handler)


def events_of(reader: BinaryIO) -> Iterator[Event]:
    """Yield the reports of the server until it is ready, or anything else comes: its code could write there."""
    while line := reader.readline(_MAX_EVENT_BYTES):
        try:
            event = msgspec.json.decode(line, type=Event)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        yield event
        if event.info is not None:
            return


def handle_event(event: Event, url: str, progress: Progress, on_ready: OnReady | None) -> None:
    """Show a report, which the checkpoint's code may have written: without control characters for the terminal."""
    if event.info is None:
        progress(escaped(event.task), event.completed, event.total, escaped(event.unit))
    elif on_ready is not None:
        texts: dict[str, Any] = {each.name: getattr(event.info, each.name) for each in fields(event.info)}
        shown: dict[str, Any] = {name: escaped(text) for name, text in texts.items() if isinstance(text, str)}
        on_ready(url, replace(event.info, **shown), event.stats or EngineStats())


def _log_format(settings: ServerSettings) -> str:
    """Return the format of the log on this process's output, which the server does not have itself."""
    return "console" if settings.log_format == "auto" and sys.stderr.isatty() else settings.log_format
