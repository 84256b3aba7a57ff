"""
The adapters of an engine: loaded and unloaded while requests run, each in a slot.

Unloading removes the name at once: new requests are refused, running ones finish with the adapter, and its slot is
free when the last of them has ended. Used on the event loop; only `release` is also called on the engine thread.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from headrace.core.client_text import shortened
from headrace.core.errors import InsufficientMemory, InvalidRequest, NotFound
from headrace.core.generation import AdapterInfo

_log = structlog.get_logger("headrace.engine")


class AdapterContent(Protocol):
    """The facts of a loaded adapter that the registry keeps: a hash of its content, the largest rank of a matrix."""

    @property
    def identity(self) -> str: ...

    @property
    def rank(self) -> int: ...


FillSlot = Callable[[int, Path], AdapterContent]
"""Reads an adapter into a slot of the engine; blocks."""


@dataclass(slots=True, eq=False, kw_only=True)
class LoadedAdapter:
    """An adapter in a slot."""

    info: AdapterInfo
    slot: int
    identity: str
    """The hash of its content, which salts the prefix cache."""
    num_uses: int = 0
    """Choices that have not ended."""


class AdapterRegistry:
    """The adapters of an engine by name: loading, use by requests, and unloading once the last request has ended."""

    def __init__(self, num_slots: int, fill: FillSlot) -> None:
        self._num_slots = num_slots
        self._fill = fill
        # What follows is shared by the event loop and the engine thread.
        self._lock = threading.Lock()
        self._free = list(range(num_slots))
        self._by_name: dict[str, LoadedAdapter] = {}
        self._loading: set[str] = set()

    @property
    def infos(self) -> tuple[AdapterInfo, ...]:
        """The adapters that requests may name, oldest first."""
        return tuple(adapter.info for adapter in self._by_name.values())

    def acquire(self, name: str, count: int) -> LoadedAdapter:
        """Return an adapter, which keeps its slot until `release` was called `count` times, or raise `NotFound`."""
        with self._lock:
            adapter = self._find(name)
            adapter.num_uses += count
            return adapter

    def release(self, adapter: LoadedAdapter, count: int = 1) -> None:
        """End `count` uses of an adapter."""
        with self._lock:
            adapter.num_uses -= count
            self._free_if_unused(adapter)

    async def load(self, name: str, path: Path, *, replaces: bool = False) -> AdapterInfo:
        """
        Read an adapter and fill a slot with it.

        With `replaces`, an adapter of this name may be loaded already: requests get the new content from then on.

        Raises:
            InvalidRequest: the name is empty or taken.
            InsufficientMemory: all slots are taken.
            BrokenModel, UnsupportedModel: the folder cannot be read or applied to this model.
        """
        slot = self._reserve(name, replaces=replaces)
        try:
            adapter = await asyncio.to_thread(self._fill, slot, path)
        except BaseException:
            with self._lock:
                self._loading.discard(name)
                self._free.append(slot)
            raise
        info = AdapterInfo(name=name, path=str(path), rank=adapter.rank, created_s=int(time.time()))
        with self._lock:
            self._loading.discard(name)
            self._delist(name)
            self._by_name[name] = LoadedAdapter(info=info, slot=slot, identity=adapter.identity)
        _log.info("adapter.loaded", name=name, path=str(path), rank=adapter.rank, slot=slot)
        return info

    def unload(self, name: str) -> None:
        """Remove a name, or raise `NotFound`; its slot is free when the last request with it has ended."""
        with self._lock:
            self._find(name)
            self._delist(name)
        _log.info("adapter.unloaded", name=name)

    def _find(self, name: str) -> LoadedAdapter:
        adapter = self._by_name.get(name)
        if adapter is None:
            raise NotFound(f"The adapter `{shortened(name)}` is not loaded. Loaded: {self._names()}.")
        return adapter

    def _reserve(self, name: str, *, replaces: bool) -> int:
        with self._lock:
            if not name:
                raise InvalidRequest("The name of the adapter is empty; expected a name.", param="name")
            if name in self._loading or (name in self._by_name and not replaces):
                raise InvalidRequest(
                    f"The adapter `{shortened(name)}` has already been loaded. Unload it first, or replace it.",
                    param="name",
                )
            if not self._free:
                raise InsufficientMemory(
                    f"All {self._num_slots} slots for adapters are taken ({self._names()}, and those that still finish "
                    "requests). Unload an adapter, or start the server with a larger max_loras."
                )
            self._loading.add(name)
            return self._free.pop(0)

    def _delist(self, name: str) -> None:
        adapter = self._by_name.pop(name, None)
        if adapter is not None:
            self._free_if_unused(adapter)

    def _free_if_unused(self, adapter: LoadedAdapter) -> None:
        is_listed = self._by_name.get(adapter.info.name) is adapter
        if not is_listed and adapter.num_uses == 0:
            self._free.append(adapter.slot)

    def _names(self) -> str:
        return ", ".join(shortened(name) for name in self._by_name) or "none"
