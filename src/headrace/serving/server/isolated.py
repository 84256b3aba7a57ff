"""
The server in the sandbox of a checkpoint's code, which `trusted_code` starts: `python -m … DESCRIPTOR`.

The descriptor is of a file with the `Plan`: it holds the server's key, which is not for arguments or variables.
"""

import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from headrace.core.engine_stats import EngineStats
from headrace.core.errors import InvalidRequest
from headrace.core.generation import ModelInfo
from headrace.core.processes import end_with, process_id
from headrace.core.telemetry import get_logger, setup_logging
from headrace.serving.artifacts.content_cache import ContentCache
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed
from headrace.serving.artifacts.fetcher import Fetcher, model_root, source_of
from headrace.serving.artifacts.object_grants import GrantedObjects
from headrace.serving.artifacts.sources import ObjectGrant
from headrace.serving.server.engine_config import load_engine
from headrace.serving.server.formatters import Formatters
from headrace.serving.server.main import MetricsObserver, ServerRun, serve_here
from headrace.serving.server.service import FetchAdapter
from headrace.serving.server.trusted_code import Event, read_plan
from headrace.serving.settings.server_settings import ServerSettings
from headrace_handler.sandbox import PARTS

_FETCH_S: Final = 1200.0
"""Longest download of an adapter. Source: SageMaker's default for the data of a model."""


def main(descriptor: int) -> int:
    """Serve the plan until a signal comes; return the exit code."""
    parent = process_id(os.getppid())  # process 1 of the namespace, or the process that has made the plan
    plan = read_plan(descriptor)
    if parent is not None:
        end_with(parent)
    for number in (plan.listener, plan.events):
        os.set_inheritable(number, False)
    settings = plan.settings
    setup_logging(format=settings.log_format, level=settings.log_level)
    get_logger().info(
        "server.isolated", pid=plan.parent.pid, sandbox=os.environ.get(PARTS, ""), withheld=[*plan.withheld]
    )
    report = _Reporter(plan.events)
    return serve_here(
        ServerRun(
            settings=settings,
            notices=plan.notices,
            progress=report.progress,
            load=lambda settings, progress, metrics, on_choice: load_engine(
                settings, progress, observer=MetricsObserver(metrics), on_choice=on_choice, located=plan.located
            ),
            on_ready=report.ready,
            fetch_adapter=fetch_adapter_for(settings) if plan.fetches_adapters else None,
            formatters=None if plan.formatters is None else Formatters(plan.formatters),
            listener=socket.socket(fileno=plan.listener),
        )
    )


class _Reporter:
    """Writes events for the process outside until the server is ready."""

    def __init__(self, descriptor: int) -> None:
        self._pipe = open(descriptor, "wb", buffering=0)  # noqa: SIM115 -- open until the server is ready

    def progress(self, task: str, completed: int, total: int, unit: str = "bytes") -> None:
        self._write(Event(task=task, completed=completed, total=total, unit=unit))

    def ready(self, _url: str, info: ModelInfo, stats: EngineStats) -> None:
        self._write(Event(info=info, stats=stats))
        self._pipe.close()

    def _write(self, event: Event) -> None:
        if not self._pipe.closed:
            self._pipe.write(msgspec.json.encode(event) + b"\n")


def fetch_adapter_for(settings: ServerSettings) -> FetchAdapter:
    """Return the function that fetches an adapter into this sandbox's own `/tmp`."""
    folder = Path(tempfile.gettempdir(), "adapters")
    cache = ContentCache(folder)
    network = settings.code_network

    def fetch(uri: str, grant: Mapping[str, object] | None) -> Path:
        if network != "all":
            raise InvalidRequest(
                f"The adapter cannot be fetched: code_network is {network}; expected all, as this server runs in the "
                "sandbox of its checkpoint's code. Put the adapter into the model's folder.",
                param="src",
            )
        granted = msgspec.convert(grant, ObjectGrant | None)
        fetcher = Fetcher(
            objects=lambda deadline: GrantedObjects([granted] if granted is not None else [], deadline),
            cache=cache,
            scratch=folder,
            deadline=Deadline(_FETCH_S),
        )
        try:
            return model_root(fetcher.fetch(source_of(uri)))
        except FetchFailed as error:
            raise InvalidRequest(str(error), param="src") from error

    return fetch


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
