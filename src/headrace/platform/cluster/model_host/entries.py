"""A hosted model, the right to use it, and its state while it is in memory."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.cluster.model_host.processes import ModelProcess
from headrace.platform.cluster.model_host.protocol import ModelTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedModel:
    """A model that a host may load."""

    name: str
    url: str
    spec: WorkerSpec
    """The worker that serves it; the host names it."""
    num_bytes: int = 0
    """Size of its files; 0 if unknown."""
    is_pinned: bool = False
    """It is not unloaded for another model, nor because it is idle."""
    ttl_s: float | None = None
    """Idle seconds after which it is unloaded; 0: after its last request. None: when another one needs its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLease:
    """The right to send one request to a loaded model."""

    url: str
    token: str
    timing: ModelTiming | None
    """None: the request did not wait, and nothing was unloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """The state of a model in a host, for lists of models."""

    value: Literal["unloaded", "loading", "loaded", "unloading"] = "unloaded"
    num_requests: int = 0
    """Requests in flight, and those that wait for the load."""
    memory_bytes: int = 0
    """Measured; 0 while it is not loaded."""
    expires_in_s: float | None = None
    """Seconds until it is unloaded if no request comes; None: never."""
    error: str = ""
    """Why its last load failed; empty after a successful one."""


@dataclass(slots=True)
class LoadCounts:
    """Loads and unloads of one model since the start of its host."""

    num_loads: int = 0
    load_s: float = 0.0
    """Time of all loads together."""
    num_failures: int = 0
    """Loads that failed."""
    num_unloads: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """A model that is loaded, being loaded, or leaving."""

    model: HostedModel
    process: ModelProcess
    memory_bytes: int
    ready: asyncio.Future[None]
    last_used_s: float
    ttl_s: float | None
    """That of the model, or what the last request asked for."""
    num_requests: int = 0
    """Requests in flight, and those that wait for the load."""
    has_room: bool = False
    is_leaving: bool = False
    is_ending: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    timing: ModelTiming | None = None
    """Times of the load, until a response has reported them."""
    expiry: asyncio.TimerHandle | None = None
    """Unloads it when it has been idle for `ttl_s`."""

    @property
    def is_loaded(self) -> bool:
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    def status(self, now_s: float) -> ModelStatus:
        if self.is_leaving:
            return ModelStatus(value="unloading", num_requests=self.num_requests)
        if not self.is_loaded:
            return ModelStatus(value="loading", num_requests=self.num_requests)
        idle_s = 0.0 if self.num_requests else now_s - self.last_used_s
        return ModelStatus(
            value="loaded",
            num_requests=self.num_requests,
            memory_bytes=self.memory_bytes,
            expires_in_s=None if self.ttl_s is None else max(0.0, self.ttl_s - idle_s),
        )
