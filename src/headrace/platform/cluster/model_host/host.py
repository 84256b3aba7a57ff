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
from dataclasses import replace
from typing import Any, Final, TypeVar

from headrace.core.errors import HeadraceError
from headrace.core.telemetry import get_logger
from headrace.platform.cluster.model_host.entries import Entry, HostedModel, LoadCounts, ModelLease, ModelStatus
from headrace.platform.cluster.model_host.processes import ModelProcess, ModelProcesses, ModelUnavailable
from headrace.platform.cluster.model_host.protocol import ModelTiming
from headrace.platform.cluster.model_host.room import ModelUse, estimate_bytes, load_bytes, make_room

_MAX_KNOWN: Final = 10_000
"""Models whose location and last measured memory are remembered."""
_MEASURE_S: Final = 5.0
"""Age at which the memory of models is measured again, after a request."""
_MIB: Final = 1 << 20
_Value = TypeVar("_Value")


class ModelHost:
    """Loads and unloads models on this machine within a limit of memory. Used on one event loop."""

    def __init__(
        self,
        processes: ModelProcesses,
        *,
        limit_bytes: int,
        max_models: int | None = None,
        is_forgetting: bool = True,
    ) -> None:
        """
        Create a host without models.

        Args:
            processes: starts and stops the workers.
            limit_bytes: memory of all models together.
            max_models: most models in memory at the same time.
            is_forgetting: True: a model is registered again before it is loaded again, with a new grant for its files.
        """
        self._processes = processes
        self._clock = processes.clock
        self._limit_bytes = limit_bytes
        self._max_models = max_models
        self._is_forgetting = is_forgetting
        self._models: OrderedDict[str, HostedModel] = OrderedDict()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Location of a model → its memory, as measured last."""
        self._peaks: OrderedDict[str, int] = OrderedDict()  # during its last load
        self._errors: OrderedDict[str, str] = OrderedDict()
        """Model → why its last load failed."""
        self.counts: OrderedDict[str, LoadCounts] = OrderedDict()
        """What happened to each model so far."""
        self._entries: dict[str, Entry] = {}
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

    @property
    def processes(self) -> list[ModelProcess]:
        """The processes of all models, also of those that are being loaded or unloaded."""
        return [entry.process for entry in self._entries.values()]

    def status(self, name: str) -> ModelStatus:
        entry = self._entries.get(name)
        if entry is None:
            return ModelStatus(error=self._errors.get(name, ""))
        return entry.status(self._clock())

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

    def retire(self, name: str) -> bool:
        """Begin to unload a model, which ends after its requests; return False if it is not loaded."""
        entry = self._entries.get(name)
        if entry is None or not entry.is_loaded:
            return False
        self._retire(entry)
        return True

    async def unload(self, name: str) -> bool:
        """Unload a model after its requests; return False if it is not loaded."""
        entry = self._entries.get(name)
        if entry is None or not self.retire(name):
            return False
        await entry.gone.wait()
        return True

    def keep(self, name: str, ttl_s: float | None) -> None:
        """Change the idle seconds after which a loaded model is unloaded, until it is loaded again; None: never."""
        entry = self._entries.get(name)
        if entry is not None and not entry.model.is_pinned:
            entry.ttl_s = ttl_s
            self._expire_when_idle(entry)

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
        for entry in self._entries.values():
            _cancel_expiry(entry)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stops = (self._processes.stop(entry.process) for entry in list(self._entries.values()))
        await asyncio.gather(*stops, return_exceptions=True)

    async def _enter(self, name: str) -> tuple[Entry, bool]:
        """Count a request for a model and wait until it is ready; return it, and whether the request had to wait."""
        has_waited = False
        while True:
            entry = self._entries.get(name) or self._begin(name)
            if entry.is_leaving:
                has_waited = True
                await entry.gone.wait()
                continue
            entry.num_requests += 1
            _cancel_expiry(entry)
            try:
                has_waited |= not entry.ready.done()
                await asyncio.shield(entry.ready)
            except BaseException:
                self._leave(entry)
                raise
            return entry, has_waited

    def _begin(self, name: str) -> Entry:
        """Begin to load a model."""
        model = self._models.get(name)
        if model is None:
            raise ModelUnavailable("The model is not registered with this host.", reason="unknown")
        sizes, pinned_bytes = self._sizes.values(), self._pinned_bytes()
        known = load_bytes(
            self._sizes.get(model.url, 0), self._peaks.get(model.url, 0), self._limit_bytes - pinned_bytes
        )
        estimate = estimate_bytes(model.num_bytes, sizes, limit_bytes=self._limit_bytes, pinned_bytes=pinned_bytes)
        entry = self._entries[name] = Entry(
            model=model,
            process=self._processes.named(name),
            memory_bytes=known or estimate,
            ready=asyncio.get_running_loop().create_future(),
            last_used_s=self._clock(),
            ttl_s=None if model.is_pinned else model.ttl_s,
        )
        entry.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())  # it may have no waiter
        self._spawn(self._load(entry))
        return entry

    def _leave(self, entry: Entry) -> None:
        """Count the end of a request."""
        entry.num_requests -= 1
        entry.last_used_s = now_s = self._clock()
        if not entry.num_requests and entry.is_leaving:
            self._end(entry)
        self._expire_when_idle(entry)
        if now_s - self._measured_s >= _MEASURE_S:
            self._measured_s = now_s
            self._spawn(self._measure_all())
        self._changed.set()

    def _expire_when_idle(self, entry: Entry) -> None:
        """Unload an idle model when its time to live has passed."""
        _cancel_expiry(entry)
        if entry.ttl_s is None or entry.num_requests or entry.is_leaving or not entry.is_loaded:
            return
        rest_s = entry.ttl_s - (self._clock() - entry.last_used_s)
        if rest_s <= 0:
            self._retire(entry)
        else:
            entry.expiry = asyncio.get_running_loop().call_later(rest_s, self._expire_when_idle, entry)

    async def _load(self, entry: Entry) -> None:
        try:
            async with self._turn:
                await self._wait_for_room(entry)
            begun_s = self._clock()
            spec = replace(entry.model.spec, name=entry.process.name)
            await self._processes.start(entry.process, spec)
            await self._measure(entry)
            _remember(self._peaks, entry.model.url, await self._processes.peak_bytes(entry.process))
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
        self._errors.pop(entry.model.name, None)
        counts = self._counts(entry)
        counts.num_loads += 1
        counts.load_s += now_s - begun_s
        took_ms, memory_mib = round((now_s - begun_s) * 1e3), entry.memory_bytes // _MIB
        get_logger().info("model.loaded", model=entry.model.url, took_ms=took_ms, memory_mib=memory_mib)
        self._unload_beyond_limit()
        self._expire_when_idle(entry)  # all that waited for it may have gone
        self._changed.set()

    def _give_up(self, entry: Entry, error: BaseException) -> None:
        """Tell the requests that wait for a model that it cannot be loaded."""
        known = error if isinstance(error, HeadraceError) else None
        why = known or ModelUnavailable(f"The model was not loaded ({type(error).__name__}).", reason="not-loaded")
        get_logger().warning("model.not_loaded", model=entry.model.url, why=why.message)
        _remember(self._errors, entry.model.name, why.message)
        self._counts(entry).num_failures += 1
        entry.is_leaving = True
        self._forget(entry)
        entry.ready.set_exception(why)
        self._end(entry)

    async def _wait_for_room(self, entry: Entry) -> None:
        while True:
            self._changed.clear()
            room = make_room(self._uses(), entry.memory_bytes, self._limit_bytes, max_models=self._max_models)
            if not room.is_possible:
                raise self._no_room(entry)
            for name in room.unload:
                self._retire(self._entries[name])
            if room.is_free:
                entry.has_room = True
                return
            await self._changed.wait()

    def _check_size(self, entry: Entry) -> None:
        if entry.memory_bytes + self._pinned_bytes(entry) > self._limit_bytes:
            raise self._no_room(entry)

    def _no_room(self, entry: Entry) -> ModelUnavailable:
        pinned_bytes = self._pinned_bytes(entry)
        pinned = f", of which pinned models take {pinned_bytes // _MIB} MiB" if pinned_bytes else ""
        remedy = "Unpin a model or give the models more memory" if pinned_bytes else "Give the models more memory"
        return ModelUnavailable(
            f"The model takes {entry.memory_bytes // _MIB} MiB, and all models together may take "
            f"{self._limit_bytes // _MIB} MiB{pinned}. {remedy}.",
            reason="no-memory",
        )

    def _pinned_bytes(self, entry: Entry | None = None) -> int:
        """Return the memory of pinned models besides an entry."""
        others = (other for other in self._entries.values() if other is not entry and other.has_room)
        return sum(other.memory_bytes for other in others if other.model.is_pinned and not other.is_leaving)

    async def _measure(self, entry: Entry) -> None:
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
                is_loading=not entry.ready.done(),
                is_pinned=entry.model.is_pinned,
            )
            for name, entry in self._entries.items()
            if entry.has_room
        ]

    def _retire(self, entry: Entry) -> None:
        """Let a model take no more requests, and end it after those that it has."""
        if entry.is_leaving:
            return
        entry.is_leaving = True
        _cancel_expiry(entry)
        self._forget(entry)
        if not entry.num_requests:
            self._end(entry)

    def _forget(self, entry: Entry) -> None:
        if self._is_forgetting:  # the next load gets what is in the object storage then
            self._models.pop(entry.model.name, None)

    def _end(self, entry: Entry) -> None:
        if not entry.is_ending:
            entry.is_ending = True
            self._spawn(self._stop(entry))

    async def _stop(self, entry: Entry) -> None:
        since_s = self._clock()
        try:
            await self._processes.stop(entry.process)
        finally:
            del self._entries[entry.model.name]
            if entry.is_loaded:
                self._counts(entry).num_unloads += 1
                self._unloads.append(_us(self._clock() - since_s))
                get_logger().info("model.unloaded", model=entry.model.url)
            entry.gone.set()
            self._changed.set()

    def _counts(self, entry: Entry) -> LoadCounts:
        if entry.model.name not in self.counts:
            _remember(self.counts, entry.model.name, LoadCounts())
        return self.counts[entry.model.name]

    def _take_timing(self, entry: Entry, wait: int) -> ModelTiming | None:
        (loaded, entry.timing), (unloads, self._unloads) = (entry.timing, None), (tuple(self._unloads), [])
        if not wait and not unloads:
            return None
        return replace(loaded or ModelTiming(wait=0), wait=wait, unload=unloads)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _cancel_expiry(entry: Entry) -> None:
    if entry.expiry is not None:
        entry.expiry.cancel()
        entry.expiry = None


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _remember(values: OrderedDict[str, _Value], key: str, value: _Value) -> None:
    values[key] = value
    values.move_to_end(key)
    if len(values) > _MAX_KNOWN:
        values.popitem(last=False)
