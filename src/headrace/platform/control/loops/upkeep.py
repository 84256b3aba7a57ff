"""
Removal of what a machine keeps of workers and endpoints that are gone.

Each machine of a platform does it for itself: it may have been away when the leader removed their records.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from headrace.core.telemetry import get_logger
from headrace.platform.cluster.launcher import Handle
from headrace.platform.control.loops.store_access import run_periodically
from headrace.platform.control.loops.worker_manager import remove_others
from headrace.platform.control.model.endpoint import ENDPOINT, JOB_ENDPOINT
from headrace.platform.control.model.worker import WORKER
from headrace.platform.state.store import Store

PERIOD_S: Final = 60.0
"""Seconds between two passes."""


class WorkerFolders(Protocol):
    """The workers with a folder on this machine, as its launcher knows them."""

    async def known(self) -> Mapping[str, Handle]: ...
    async def forget(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """A task that removes folders without a record; `run` until cancelled."""

    store: Store
    launcher: WorkerFolders
    workers: Path
    """The folder of the workers of this machine."""
    prefixes: Path
    """The prefix caches of endpoints on this machine."""
    clock: Callable[[], float] = time.time

    async def run(self) -> None:
        await run_periodically(
            self.pass_once, store=self.store, period_s=PERIOD_S, clock=self.clock, failure="upkeep.failed"
        )

    async def pass_once(self) -> int:
        """Remove what belongs to no record; return the number of workers that were forgotten."""
        left_over = await asyncio.to_thread(self._find)
        forgotten = left_over - (await self.launcher.known()).keys()
        for name in sorted(forgotten):
            get_logger().info("worker.left_over", worker=name)
            await self.launcher.forget(name)
        return len(forgotten)

    def _find(self) -> set[str]:
        """Remove the prefix caches of endpoints that are gone; return the workers' folders without a record."""
        # The folders come first: a record is created before its folder, and may be new.
        folders = {folder.name for folder in self.workers.iterdir()} if self.workers.is_dir() else set()
        uids = {record.uid for kind in (ENDPOINT, JOB_ENDPOINT) for record in self.store.list(kind)}
        remove_others(self.prefixes, uids)  # a worker that still runs makes its own again
        return folders - {record.name for record in self.store.list(WORKER)}
