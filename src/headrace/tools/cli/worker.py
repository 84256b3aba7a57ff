"""`headrace worker`, which `headrace up` runs for each worker: fetch artifacts, then serve like `headrace serve`."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.core.errors import InvalidRequest, SettingsError
from headrace.serving.settings.values import near_name
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.user_code import find_user_code, formatted_notices, formatters_of, serve_user_code

if TYPE_CHECKING:
    from headrace.platform.cluster.worker import PreparedWorker
    from headrace.serving.server.service import FetchAdapter
    from headrace.serving.settings.container_names import Notice
    from headrace.serving.settings.server_settings import ServerSettings

EXAMPLES = """
headrace worker DATA/workers/NAME/worker.json   run a worker by hand
"""
_OF_SERVER = (
    "headrace.inference.backends.loading",
    "headrace.inference.engine.loading.assembly",
    "headrace.inference.models.chat",
    "headrace.inference.models.gguf_tokenizer",
    "headrace.inference.runner.native",
    "headrace.serving.server.main",
    "headrace.serving.settings.sources",
    "headrace.tools.cli.progress",
    "tokenizers",
)
"""Modules that import all others; none may read the variables of a model when it is imported."""
_NO_FOLDER = Path("/nonexistent")
_OBJECTS = "s3://"


@click.command(cls=HelpfulCommand, examples=EXAMPLES, hidden=True)
@click.argument("assignment", type=click.Path(path_type=Path))
def worker(assignment: Path) -> None:
    """
    Run the worker that the file ASSIGNMENT describes; `headrace up` writes the file and runs this command.

    With `-` it first imports what workers need, and then reads the path of the file from its standard input.
    """
    from headrace.platform.cluster.spare import FROM_INPUT, receive_assignment
    from headrace.platform.cluster.worker import protect_output, run_worker

    if str(assignment) == FROM_INPUT:
        _import_server()
        assignment = receive_assignment()
    protect_output()
    sys.exit(run_worker(assignment.resolve(), serve_model))


def _import_server() -> None:
    """Import what the native engine's server and a model's files need."""
    for name in _OF_SERVER:
        import_module(name)


def serve_model(prepared: "PreparedWorker") -> int:
    """Serve like `headrace serve` in a container until a signal stops it; return the exit code."""
    from headrace.serving.server.main import run_server
    from headrace.tools.cli.progress import showing_progress

    overrides = _overrides(prepared)
    code = find_user_code(
        overrides,
        os.environ,
        model_folder=prepared.model_folder or _NO_FOLDER,
        empty_folder=prepared.empty_folder,
        family=prepared.assignment.spec.family,
        channels=prepared.channels,
    )
    if code is not None and code.serves:
        _refuse_other_certificate(code.settings, prepared)
        prepared.report_notices(code.description)
        return serve_user_code(code)
    settings, notices = worker_settings(prepared, os.environ)
    if code is not None:
        notices = formatted_notices(code, notices)

    def report(settled: "Sequence[Notice]") -> None:
        known = [notice for notice in notices if not notice.backends]
        told = [notice.message for notice in [*known, *settled] if notice.kind != "applied"]
        prepared.report_notices(told if code is None else [*code.summaries, *told])

    report(())
    with showing_progress() as progress:
        formatters = None if code is None else formatters_of(code, settings, progress)
        return run_server(
            settings,
            notices=notices,
            progress=progress,
            on_notices=report,
            fetch_adapter=_adapter_fetcher(prepared),
            formatters=formatters,
        )


def worker_settings(prepared: "PreparedWorker", env: Mapping[str, str]) -> "tuple[ServerSettings, list[Notice]]":
    """
    Return the settings of a worker's server from its environment and the model's folder, as in a container.

    The image's profile and the address to listen on override both.

    Raises:
        SettingsError: the settings are invalid, or the image's profile has an unknown option.
        FetchFailed: the model that they name could not be fetched.
    """
    from headrace.inference.backends.facts import runs_on_gpu
    from headrace.serving.artifacts.fetcher import model_root
    from headrace.serving.settings.sources import gather_settings

    settings, notices = gather_settings(
        _overrides(prepared), env, model_folder=prepared.model_folder or _NO_FOLDER, on_gpu=runs_on_gpu(env)
    )
    _refuse_other_certificate(settings, prepared)
    settings = _with_gpu_share(settings, prepared.assignment.given.workers_per_gpu)
    if settings.model.startswith(_OBJECTS):
        settings = replace(
            settings,
            model=str(model_root(prepared.fetch_model(settings.model))),
            served_model_name=settings.served_model_name or settings.model.rstrip("/").rpartition("/")[2],
        )
    return settings, notices


def _overrides(prepared: "PreparedWorker") -> dict[str, object]:
    """Return the settings that the image's profile and the launcher decide."""
    assignment, spec = prepared.assignment, prepared.assignment.spec
    overrides: dict[str, object] = {
        "container": "true",
        **_options(spec.options),
        "host": assignment.host,
        "port": str(assignment.port),
        "api_key": assignment.token or None,
        "tls_cert": prepared.certificate,
        "management_address": "off",  # clients reach a worker through the gateway only, and workers share the host
        "metrics_address": "off",
        "shutdown_delay_s": "0",  # the gateway removes the route before the worker is stopped
    }
    if spec.threads is not None:
        overrides["threads"] = str(spec.threads)
    if spec.memory_bytes is not None:
        overrides.setdefault("max_memory_bytes", str(spec.memory_bytes))
    return overrides


def _refuse_other_certificate(settings: "ServerSettings", prepared: "PreparedWorker") -> None:
    """Refuse a certificate that a model's variables or files name: the gateway would not reach its server."""
    for name in ("tls_cert", "tls_key"):
        if (path := getattr(settings, name)) not in (None, prepared.certificate):
            raise SettingsError(
                f"{name} is {path}; expected none: the platform gives its workers their certificates. Remove it from "
                "the model's Environment and files, and set `headrace up --tls-cert` for clients.",
                name=name,
            )


def _with_gpu_share(settings: "ServerSettings", workers_per_gpu: int) -> "ServerSettings":
    """Divide the memory of a shared GPU between its workers, unless the settings say how much this one takes."""
    default = next(field.default for field in fields(settings) if field.name == "gpu_memory_utilization")
    if workers_per_gpu == 1 or settings.gpu_memory_utilization != default:
        return settings
    return replace(settings, gpu_memory_utilization=default / workers_per_gpu)


def _adapter_fetcher(prepared: "PreparedWorker") -> "FetchAdapter":
    """Return the function that fetches an adapter by the location of its artifacts."""
    import msgspec

    from headrace.serving.artifacts.fetch_bounds import FetchFailed
    from headrace.serving.artifacts.fetcher import model_root
    from headrace.serving.artifacts.sources import ObjectGrant

    def fetch(uri: str, grant: Mapping[str, object] | None) -> Path:
        try:
            return model_root(prepared.fetch_adapter(uri, msgspec.convert(grant, ObjectGrant | None)))
        except FetchFailed as error:
            raise InvalidRequest(str(error), param="src") from error

    return fetch


def _options(options: dict[str, str]) -> dict[str, object]:
    """Map the options of an image's profile to names of settings."""
    from headrace.serving.settings.server_settings import setting_names

    known = setting_names()
    read: dict[str, object] = {}
    for option, value in options.items():
        name = option.lstrip("-").replace("-", "_")
        if name not in known:
            near = near_name(name, known, cutoff=0.6)
            hint = f" Did you mean {near}?" if near else ""
            raise SettingsError(f"The image's option {option!r} is not a setting of `headrace serve`.{hint}", name=name)
        read[name] = value
    return read
