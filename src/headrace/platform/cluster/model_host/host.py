"""
A host of models: it loads a model for a request, holds the request meanwhile, and unloads others when memory is short.

Each loaded model is a worker of its own, so that unloading returns all of its memory and a crash takes no other model
with it. Requests for a model that is being loaded wait for the one load; loads begin in the order in which they were
asked for.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from headrace.core.errors import HeadraceError
from headrace.core.telemetry import get_logger
from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.cluster.model_host.processes import ModelProcess, ModelProcesses, ModelUnavailable
from headrace.platform.cluster.model_host.protocol import ModelTiming
from headrace.platform.cluster.model_host.room import ModelUse, make_room

_MAX_KNOWN: Final = 10_000
"""Models whose location and last measured memory are remembered."""
_MEASURE_S: Final = 5.0
"""Age at which the memory of models is measured again, after a request."""
_MIB: Final = 1 << 20
_PROCESS_BYTES: Final = 96 * _MIB
"""Estimate for a process without its model, before the first measurement."""
_FIRST_SHARE: Final = 4
"""Part of the limit that is reserved for a model while none has been measured."""
_UNPACKED: Final = 1.5
"""Estimated size of a model in memory, relative to its files."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedModel:
    """A model that a host may load."""

    name: str
    url: str
    spec: WorkerSpec
    """The worker that serves it; the host names it."""
    num_bytes: int = 0
    """Size of its files; 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLease:
    """The right to send one request to a loaded model."""

    url: str
    token: str
    timing: ModelTiming | None
    """None: the request did not wait, and nothing was unloaded."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Entry:
    """A model that is loaded, being loaded, or leaving."""

    model: HostedModel
    process: ModelProcess
    memory_bytes: int
    ready: asyncio.Future[None]
    last_used_s: float
    num_requests: int = 0
    """Requests in flight, and those that wait for the load."""
    has_room: bool = False
    is_leaving: bool = False
    is_ending: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    timing: ModelTiming | None = None
    """Times of the load, until a response has reported them."""

    @property
    def is_loaded(self) -> bool:
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None


class ModelHost:
    """Loads and unloads models on this machine within a limit of memory. Used on one event loop."""

    def __init__(self, processes: ModelProcesses, *, limit_bytes: int, is_caching: bool = True) -> None:
        """Create a host without models; unless `is_caching`, a model is unloaded after its last request."""
        self._processes = processes
        self._clock = processes.clock
        self._limit_bytes = limit_bytes
        self._is_caching = is_caching
        self._models: OrderedDict[str, HostedModel] = OrderedDict()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Location of a model → its memory, as measured last."""
        self._entries: dict[str, _Entry] = {}
        self._unloads: list[int] = []
        """Microseconds of unloads that no response has reported yet."""
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._measured_s = self._clock()

    @property
    def loaded(self) -> list[tuple[HostedModel, ModelProcess]]:
        """The models that can answer now, with their processes."""
        entries = (entry for entry in self._entries.values() if entry.is_loaded and not entry.is_leaving)
        return [(entry.model, entry.process) for entry in entries]

    def register(self, model: HostedModel) -> None:
        """Make a model known, so that requests may load it; a loaded one stays as it is."""
        _remember(self._models, model.name, model)

    def find(self, name: str) -> HostedModel | None:
        """Return a model that can answer now, or None."""
        return next((model for model, _ in self.loaded if model.name == name), None)

    @asynccontextmanager
    async def lease(self, name: str, *, wait_s: float | None = None) -> AsyncIterator[ModelLease]:
        """
        Load a model if necessary, and keep it loaded until the block ends.

        Raises `ModelUnavailable`: it is not registered, was not loaded within `wait_s`, or cannot be loaded.
        """
        since_s = self._clock()
        try:
            async with asyncio.timeout(wait_s):
                entry, has_waited = await self._enter(name)
        except TimeoutError:
            text = f"The model is still being loaded after {wait_s:g} s. Wait and try your request again."
            raise ModelUnavailable(text, reason="not-ready") from None
        try:
            assert entry.process.handle is not None, "it is ready"
            yield ModelLease(
                url=entry.process.handle.url,
                token=entry.process.handle.token,
                timing=self._take_timing(entry, max(1, _us(self._clock() - since_s)) if has_waited else 0),
            )
        finally:
            self._leave(entry)

    async def unload(self, name: str) -> bool:
        """Unload a model after its requests; return False if it is not loaded."""
        entry = self._entries.get(name)
        if entry is None or not entry.is_loaded:
            return False
        self._retire(entry)
        await entry.gone.wait()
        return True

    async def check(self, name: str) -> None:
        """Remove a model whose worker has ended; called after a request to it has failed."""
        entry = self._entries.get(name)
        if entry is None or entry.is_leaving or not entry.is_loaded:
            return
        why = await self._processes.why_ended(entry.process)
        if why is not None:
            get_logger().warning("model.lost", model=entry.model.url, why=why)
            self._retire(entry)
            self.register(entry.model)

    async def close(self) -> None:
        """Stop all models; requests in flight are not waited for."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stops = (self._processes.stop(entry.process) for entry in list(self._entries.values()))
        await asyncio.gather(*stops, return_exceptions=True)

    async def _enter(self, name: str) -> tuple[_Entry, bool]:
        """Count a request for a model and wait until it is ready; return it, and whether the request had to wait."""
        has_waited = False
        while True:
            entry = self._entries.get(name) or self._begin(name)
            if entry.is_leaving:
                has_waited = True
                await entry.gone.wait()
                continue
            entry.num_requests += 1
            try:
                has_waited |= not entry.ready.done()
                await asyncio.shield(entry.ready)
            except BaseException:
                self._leave(entry)
                raise
            return entry, has_waited

    def _begin(self, name: str) -> _Entry:
        """Begin to load a model."""
        model = self._models.get(name)
        if model is None:
            raise ModelUnavailable("The model is not registered with this host.", reason="unknown")
        entry = self._entries[name] = _Entry(
            model=model,
            process=self._processes.named(name),
            memory_bytes=self._sizes.get(model.url) or self._estimate(model),
            ready=asyncio.get_running_loop().create_future(),
            last_used_s=self._clock(),
        )
        entry.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())  # it may have no waiter
        self._spawn(self._load(entry))
        return entry

    def _estimate(self, model: HostedModel) -> int:
        """Return the memory to reserve for a model that was never measured: like the others of its endpoint."""
        known = self._sizes.values()
        typical = sum(known) // len(known) if known else self._limit_bytes // _FIRST_SHARE
        return max(typical, round(model.num_bytes * _UNPACKED) + _PROCESS_BYTES)

    def _leave(self, entry: _Entry) -> None:
        """Count the end of a request."""
        entry.num_requests -= 1
        entry.last_used_s = now_s = self._clock()
        if not entry.num_requests:
            if entry.is_leaving:
                self._end(entry)
            elif not self._is_caching and entry.is_loaded:
                self._retire(entry)
        if now_s - self._measured_s >= _MEASURE_S:
            self._measured_s = now_s
            self._spawn(self._measure_all())
        self._changed.set()

    async def _load(self, entry: _Entry) -> None:
        try:
            async with self._turn:
                await self._wait_for_room(entry)
            begun_s = self._clock()
            spec = replace(entry.model.spec, name=entry.process.name)
            await self._processes.start(entry.process, spec)
            await self._measure(entry)
            self._check_size(entry)
        except BaseException as error:
            self._give_up(entry, error)
            if not isinstance(error, HeadraceError):
                raise
            return
        now_s, fetched_s = self._clock(), entry.process.fetched_s
        entry.timing = ModelTiming(wait=0, download=_us(fetched_s - begun_s), load=_us(now_s - fetched_s))
        entry.last_used_s = now_s
        entry.ready.set_result(None)
        took_ms, memory_mib = round((now_s - begun_s) * 1e3), entry.memory_bytes // _MIB
        get_logger().info("model.loaded", model=entry.model.url, took_ms=took_ms, memory_mib=memory_mib)
        self._unload_beyond_limit()
        self._changed.set()

    def _give_up(self, entry: _Entry, error: BaseException) -> None:
        """Tell the requests that wait for a model that it cannot be loaded."""
        known = error if isinstance(error, HeadraceError) else None
        why = known or ModelUnavailable(f"The model was not loaded ({type(error).__name__}).", reason="not-loaded")
        get_logger().warning("model.not_loaded", model=entry.model.url, why=why.message)
        entry.is_leaving = True
        self._models.pop(entry.model.name, None)
        entry.ready.set_exception(why)
        self._end(entry)

    async def _wait_for_room(self, entry: _Entry) -> None:
        while True:
            self._changed.clear()
            room = make_room(self._uses(), entry.memory_bytes, self._limit_bytes)
            for name in room.unload:
                self._retire(self._entries[name])
            if room.is_free:
                entry.has_room = True
                return
            await self._changed.wait()

    def _check_size(self, entry: _Entry) -> None:
        if entry.memory_bytes > self._limit_bytes:
            raise ModelUnavailable(
                f"The model takes {entry.memory_bytes // _MIB} MiB, and all models together may take "
                f"{self._limit_bytes // _MIB} MiB. Choose an instance type with more memory.",
                reason="no-memory",
            )

    async def _measure(self, entry: _Entry) -> None:
        entry.memory_bytes = await self._processes.memory_bytes(entry.process)
        _remember(self._sizes, entry.model.url, entry.memory_bytes)

    async def _measure_all(self) -> None:
        for entry in list(self._entries.values()):
            if entry.is_loaded and not entry.is_leaving:
                await self._measure(entry)
        self._unload_beyond_limit()

    def _unload_beyond_limit(self) -> None:
        """Unload what is least recently used until the measured memory is within the limit."""
        uses = [use for use in self._uses() if not use.is_leaving]
        newest = max(uses, key=lambda use: use.last_used_s, default=None)
        if newest is not None and sum(use.memory_bytes for use in uses) > self._limit_bytes:
            others = [use for use in uses if use is not newest]
            for name in make_room(others, newest.memory_bytes, self._limit_bytes).unload:
                self._retire(self._entries[name])

    def _uses(self) -> list[ModelUse]:
        return [
            ModelUse(
                name=name,
                memory_bytes=entry.memory_bytes,
                last_used_s=entry.last_used_s,
                is_busy=entry.num_requests > 0,
                is_leaving=entry.is_leaving,
                is_fixed=not entry.ready.done(),
            )
            for name, entry in self._entries.items()
            if entry.has_room
        ]

    def _retire(self, entry: _Entry) -> None:
        """Let a model take no more requests, and end it after those that it has."""
        if entry.is_leaving:
            return
        entry.is_leaving = True
        self._models.pop(entry.model.name, None)  # the next load gets what is in the object storage then
        if not entry.num_requests:
            self._end(entry)

    def _end(self, entry: _Entry) -> None:
        if not entry.is_ending:
            entry.is_ending = True
            self._spawn(self._stop(entry))

    async def _stop(self, entry: _Entry) -> None:
        since_s = self._clock()
        try:
            await self._processes.stop(entry.process)
        finally:
            del self._entries[entry.model.name]
            if entry.is_loaded:
                self._unloads.append(_us(self._clock() - since_s))
                get_logger().info("model.unloaded", model=entry.model.url)
            entry.gone.set()
            self._changed.set()

    def _take_timing(self, entry: _Entry, wait: int) -> ModelTiming | None:
        loaded, entry.timing = entry.timing, None
        unloads, self._unloads = tuple(self._unloads), []
        if not wait and not unloads:
            return None
        return replace(loaded or ModelTiming(wait=0), wait=wait, unload=unloads)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _remember(values: OrderedDict[str, _Value], key: str, value: _Value) -> None:
    values[key] = value
    values.move_to_end(key)
    if len(values) > _MAX_KNOWN:
        values.popitem(last=False)
