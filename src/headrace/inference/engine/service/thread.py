"""
The thread that the engine runs on.

The thread sleeps on a condition while idle (no polling), takes commands between steps and delivers the chunks of a step
in one call, when the next step begins: only then does it release the GIL, for which the event loop would have to wait.
`Engine` is used on this thread only.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import structlog

from headrace.core.engine_stats import EngineStats
from headrace.core.errors import SettingsError, Unavailable
from headrace.core.generation import Chunk, Finish, FinishReason
from headrace.inference.engine.config import EngineLimits
from headrace.inference.engine.core.choice import Choice
from headrace.inference.engine.core.engine import Emitted, Engine
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.core.stored_blocks import BlockRead
from headrace.inference.engine.prefix_store.store import FileStore
from headrace.inference.engine.service.stream import deliver
from headrace.inference.engine.text.detokenizer import TokenTable
from headrace.inference.models.adapter import Adapter
from headrace.inference.runner.step import Runner

_log = structlog.get_logger("headrace.engine")

MAX_FAILURES_IN_ROW = 3

ReadAdapter = Callable[[Path], Adapter]
"""Reads an adapter for the engine's model; blocks."""


class EngineThread:
    """Our own engine on a `Runner`, which it owns. `ChoiceEngine` describes its attributes and methods."""

    delays_grammars = True
    """Every mask is computed from the state of its choice."""

    def __init__(
        self,
        runner: Runner,
        table: TokenTable,
        limits: EngineLimits,
        *,
        read_adapter: ReadAdapter | None = None,
        store: FileStore | None = None,
    ) -> None:
        """Create a stopped engine, which owns the runner and the store of its prefixes."""
        self.vocab_size = runner.vocab_size
        self.num_adapter_slots = runner.limits.max_adapters
        self.crash: Exception | None = None
        self._runner = runner
        self._engine = Engine(runner, table, limits, clock=time.perf_counter)
        self._read_adapter = read_adapter
        self._wakeup = threading.Condition()
        self._arrivals: list[Choice] = []
        self._aborts: list[tuple[list[Choice], str]] = []
        self._reads: list[BlockRead] = []
        """Reads of the store that have ended."""
        self._store = store
        self._is_stopping = False
        self._open: set[Choice] = set()
        self._undelivered: Emitted = []
        self._thread = threading.Thread(target=self._run, name="headrace-engine", daemon=True)
        self.num_rounds = 0
        """Iterations of the loop; constant while the engine is idle."""

    @property
    def is_healthy(self) -> bool:
        """False after a crash, too many consecutive failed steps or the end of a process that the runner needs."""
        is_running = self.crash is None and self._engine.num_failures_in_row < MAX_FAILURES_IN_ROW
        return is_running and self._runner.is_healthy

    def start(self) -> None:
        self._thread.start()

    def begin_service(self, observer: EngineObserver) -> None:
        self._engine.begin_service(observer)
        if self._store is not None:  # the prompt of the warm-up is neither read nor stored
            self._store.start(on_read=self._take_read, is_busy=lambda: self._engine.has_work)
            self._engine.scheduler.stored.attach(self._store)

    def add(self, choices: list[Choice]) -> None:
        with self._wakeup:
            if self._is_stopping or self.crash is not None:
                raise Unavailable("The engine has stopped. Send the request to another server or try again later.")
            self._arrivals += choices
            self._wakeup.notify()

    def abort(self, choices: Iterable[Choice], *, message: str) -> None:
        with self._wakeup:
            self._aborts.append((list(choices), message))
            self._wakeup.notify()

    def fill_adapter_slot(self, slot: int, path: Path) -> Adapter:
        if self._read_adapter is None:
            raise SettingsError("Adapters are off. Start the server with --enable-lora.")
        adapter = self._read_adapter(path)
        self._runner.load_adapter(slot, adapter)
        return adapter

    def stats(self) -> EngineStats:
        """Return current statistics, with the choices that the scheduler has not queued yet."""
        stats = self._engine.stats()
        stored = {} if self._store is None else self._store.stats()
        return replace(stats, num_waiting=stats.num_waiting + len(self._arrivals), **stored)

    def stop(self) -> None:
        """Stop after the current step and the aborts that are queued, join the thread and close the runner."""
        with self._wakeup:
            self._is_stopping = True
            self._wakeup.notify()
        if self._thread.ident is not None:
            self._thread.join()
        if self._store is not None:
            self._store.close()
            self._finish_reads()
        self._runner.close()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._round()
            self._deliver()
        except Exception as error:  # noqa: BLE001 - an edge: the engine's own state is broken, so it cannot continue
            _log.exception("engine.crashed")
            with self._wakeup:
                self.crash = error
                lost = [*self._open, *self._arrivals]
            self._undelivered += [(choice, _crashed(choice, error)) for choice in lost]
            self._deliver()

    def _wait_for_work(self) -> bool:
        """Sleep until there is work; return False once the thread should stop."""
        with self._wakeup:
            while not (self._arrivals or self._aborts or self._reads or self._engine.has_work or self._is_stopping):
                self._wakeup.wait()
            return not self._is_stopping or bool(self._aborts)

    def _round(self) -> None:
        self.num_rounds += 1
        with self._wakeup:
            arrivals, self._arrivals = self._arrivals, []
            aborts, self._aborts = self._aborts, []
            self._open.update(arrivals)
        self._finish_reads()
        for choice in arrivals:
            self._engine.add(choice)
        emitted: Emitted = []
        for choices, message in aborts:
            emitted += self._engine.abort(choices, message=message)
        num_failures = self._engine.num_failures_in_row
        emitted += self._engine.step(self._deliver)
        if self._engine.num_failures_in_row > num_failures:
            _log.error("engine.step_failed", exc_info=self._engine.last_failure)
        self._open.difference_update(choice for choice, chunk in emitted if chunk.finish is not None)
        self._undelivered += emitted
        pool = self._engine.scheduler.pool
        if not self._engine.has_work or not emitted:
            self._deliver()
        if self._engine.scheduler.is_idle and pool.num_free != pool.num_blocks:
            _log.error("engine.blocks_lost", num_blocks=pool.num_blocks, num_free_blocks=pool.num_free)

    def _take_read(self, read: BlockRead) -> None:
        with self._wakeup:
            self._reads.append(read)
            self._wakeup.notify()

    def _finish_reads(self) -> None:
        with self._wakeup:
            reads, self._reads = self._reads, []
        for read in reads:
            self._engine.scheduler.stored.finish_read(read)

    def _deliver(self) -> None:
        if self._undelivered:
            chunks, self._undelivered = self._undelivered, []
            deliver(chunks)


def _crashed(choice: Choice, error: Exception) -> Chunk:
    """Return a last chunk without using the engine's state."""
    finish = Finish(
        reason=FinishReason.ERROR,
        prompt_tokens=choice.sequence.num_prompt_tokens,
        output_tokens=choice.sequence.num_output_tokens,
        message=f"The engine crashed: {error}",
    )
    return Chunk(index=choice.index, finish=finish)
