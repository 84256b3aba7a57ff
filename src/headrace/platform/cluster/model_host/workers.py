"""The workers of a host's models on this machine: their processes, logs and pages of metrics."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.core.processes import memory_bytes, peak_memory_bytes
from headrace.platform.cluster.local import LocalLauncher, ProcessOptions, worker_process
from headrace.platform.cluster.model_host.host import ModelHost
from headrace.platform.cluster.model_host.processes import ModelProcesses
from headrace.platform.cluster.worker_logs import WorkerLogs
from headrace.serving.http.client import ClientRequest, HttpClient
from headrace.serving.http.client_connection import NoResponse, ResponseBroken, ResponseTooLarge

_PAGE_TIMEOUT_S: Final = 2.0
_MAX_PAGE_BYTES: Final = 1 << 20
_LOG_BLOCK_BYTES: Final = 1 << 20


class HostedWorkers:
    """A model host whose models are processes of this machine, which end with this process."""

    def __init__(
        self,
        folder: Path,
        *,
        cache_folder: Path,
        environment: Mapping[str, str],
        token: str,
        limit_bytes: int,
        load_timeout_s: float,
        max_models: int | None = None,
        is_forgetting: bool = True,
    ) -> None:
        """
        Create a host without models.

        Args:
            folder: contains a folder for each model in memory.
            cache_folder: the cache of fetched artifacts.
            environment: this process's environment; workers get the safe part of it.
            token: bearer token that the workers require; empty: none.
            limit_bytes: memory of all models together.
            load_timeout_s: longest time from the start of a worker until it is ready.
            max_models: most models in memory at the same time.
            is_forgetting: see `ModelHost`.
        """
        self.client = HttpClient()
        self._token = token
        self._logs = WorkerLogs(folder)
        self._positions: dict[str, int] = {}
        """Worker of a model → end of the part of its log that was copied."""
        options = ProcessOptions(token=token, dies_with_parent=True)
        self._launcher = LocalLauncher(folder, cache_folder=cache_folder, environment=environment, options=options)
        processes = ModelProcesses(
            launcher=self._launcher,
            measure=lambda handle: memory_bytes(worker_process(handle)),  # shared libraries count for each process
            measure_peak=lambda handle: peak_memory_bytes(worker_process(handle)),
            load_timeout_s=load_timeout_s,
            on_ended=self._ended,
        )
        self.host = ModelHost(processes, limit_bytes=limit_bytes, max_models=max_models, is_forgetting=is_forgetting)

    async def keep_spare(self) -> None:
        """Keep a process that waits for the next model, from now on."""
        await self._launcher.keep_spare()

    async def close(self) -> None:
        await self.host.close()
        await self.client.close()
        await self._launcher.close()

    async def copy_logs(self) -> None:
        """Copy what the models have logged since the last call."""
        for process in self.host.processes:
            await asyncio.to_thread(self._copy_log, process.name)

    async def pages(self) -> dict[str, str]:
        """Return the page of metrics of each loaded model, by its name; empty for one that does not answer."""
        loaded = [(model.name, process.handle.url) for model, process in self.host.loaded if process.handle]
        pages = await asyncio.gather(*(self._page(url) for _, url in loaded))
        return dict(zip((name for name, _ in loaded), pages, strict=True))

    async def read(self, url: str, request: ClientRequest, *, max_bytes: int) -> bytes | None:
        """
        Return a page of a model's server; None if its status is not 200.

        Raises `NoResponse`, `ResponseBroken` or `ResponseTooLarge`.
        """
        headers = (("Authorization", f"Bearer {self._token}"),) if self._token else ()
        response = await self.client.send(url, replace(request, headers=headers))
        try:
            page = await response.read(max_bytes)
        finally:
            response.close()
        return page if response.status == 200 else None

    def _ended(self, worker: str) -> None:
        self._copy_log(worker)
        self._positions.pop(worker, None)

    def _copy_log(self, worker: str) -> None:
        while True:
            position = self._positions.get(worker, 0)
            start, content = self._logs.read_bytes(worker, position, _LOG_BLOCK_BYTES)
            if not content:
                break
            self._positions[worker] = start + len(content)
            sys.stdout.write(content.decode(errors="replace"))
        self._logs.trim(worker)

    async def _page(self, url: str) -> str:
        try:
            async with asyncio.timeout(_PAGE_TIMEOUT_S):
                page = await self.read(url, ClientRequest(method="GET", path="/metrics"), max_bytes=_MAX_PAGE_BYTES)
        except (NoResponse, ResponseBroken, ResponseTooLarge, TimeoutError):
            return ""
        return "" if page is None else page.decode(errors="replace")
