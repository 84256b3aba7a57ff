"""The batches of one folder: those that have not ended run here, a few at a time, until they end."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headrace.core.errors import NotFound, Unavailable
from headrace.core.metrics import BatchMetrics
from headrace.core.telemetry import get_logger
from headrace.serving.batches.run import BatchRun, Send
from headrace.serving.batches.store import BatchKey, BatchStore
from headrace.serving.wire.batches import Batch

MAX_ACTIVE: Final = 16
"""Batches that run at the same time; further ones wait, the oldest first."""
SWEEP_S: Final = 3600.0
RETRY_S: Final = 30.0
"""Pause after a batch could not go on, for example because the disk is full."""


@dataclass(slots=True, kw_only=True)
class Batches:
    store: BatchStore
    send: Send
    max_line_bytes: int
    metrics: BatchMetrics = field(default_factory=BatchMetrics)
    clock: Callable[[], float] = time.time
    on_change: Callable[[], None] = lambda: None
    """Called after a batch was created or cancelled while another process runs the batches."""
    _led: BatchStore = field(init=False)
    """The store of the process that runs the batches."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _is_running: bool = False
    _window: int = 1
    _active: "dict[BatchKey, tuple[BatchRun, asyncio.Task[None]]]" = field(default_factory=dict)
    _retry_s: dict[BatchKey, float] = field(default_factory=dict)
    """When a batch that could not go on is tried again."""

    async def run(self, *, window: int, total_window: int, term: int | None = None) -> None:
        """
        Run the batches until cancelled; those that run then go on at the next call. Only one process may run this.

        It leads in `term`, if machines share the files. `window` bounds the requests of one batch in flight,
        `total_window` those of all batches.
        """
        self._window = window
        self._led = self.store if term is None else self.store.fenced(term)
        self._is_running, swept_s = True, float("-inf")
        places = asyncio.Semaphore(total_window)
        try:
            while True:
                self._wake.clear()
                try:
                    if not 0 <= self.clock() - swept_s < SWEEP_S:
                        swept_s = self.clock()
                        await asyncio.to_thread(self._led.sweep)
                    await self._pass_once(places)
                except (OSError, Unavailable) as error:
                    get_logger().error("batch.folder_unreadable", reason=str(error))
                try:
                    async with asyncio.timeout(RETRY_S):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            self._is_running = False
            tasks = [task for _, task in self._active.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._active.clear()
            self.metrics.num_active = 0

    def look(self) -> None:
        """Look for new and cancelled batches now."""
        self._wake.set()

    def changed(self) -> None:
        """Note that a batch was created or cancelled in this process."""
        if self._is_running:
            self.look()
        else:
            self.on_change()

    async def _pass_once(self, places: asyncio.Semaphore) -> None:
        """Start batches that have not ended, and pass cancellations on to those that run."""
        self._forget_ended()
        keys = await asyncio.to_thread(self._led.open_batches)
        self._retry_s = {key: at_s for key, at_s in self._retry_s.items() if key in keys}
        for key in keys:
            if key not in self._active and self._retry_s.get(key, 0.0) <= self.clock():
                if len(self._active) >= MAX_ACTIVE:
                    continue
                batch = await asyncio.to_thread(self._load, key)
                if batch is not None:
                    self._start(key, batch, places)
            if key in self._active:
                cancelling_s = await asyncio.to_thread(self._led.cancelling_s, key.owner, key.batch_id)
                if cancelling_s is not None:
                    self._active[key][0].cancelled.set()

    def _load(self, key: BatchKey) -> Batch | None:
        try:
            return self._led.batch(key.owner, key.batch_id)
        except NotFound:  # it is just being created, or its creation was killed
            return None

    def _start(self, key: BatchKey, batch: Batch, places: asyncio.Semaphore) -> None:
        run = BatchRun(
            store=self._led,
            owner=key.owner,
            batch=batch,
            send=self.send,
            places=places,
            window=self._window,
            max_line_bytes=self.max_line_bytes,
            on_lines=self.metrics.count,
            clock=self.clock,
        )
        task = asyncio.create_task(run.run(), name=batch.id)
        task.add_done_callback(lambda _: self.look())
        self._active[key] = run, task
        self.metrics.num_active = len(self._active)

    def _forget_ended(self) -> None:
        for key, (_, task) in list(self._active.items()):
            if task.done():
                del self._active[key]
                if not task.cancelled() and (error := task.exception()) is not None:
                    get_logger().error("batch.stopped", batch=key.batch_id, retry_s=RETRY_S, exc_info=error)
                    self._retry_s[key] = self.clock() + RETRY_S
        self.metrics.num_active = len(self._active)
