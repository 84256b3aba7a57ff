"""
Starts, watches and stops workers: the seam between the reconciler and the machines.

A worker outlives the platform's process: what is needed to find it again (`Handle`) is kept in its record, and `poll`
works with a handle from an earlier life of the platform (adoption).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headrace.state.records import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSource:
    """Where the files of a model come from."""

    uri: str
    """`s3://bucket/key`, an `http(s)://` URL, or a local path (friendly mode)."""
    is_prefix: bool = False
    """All objects under the prefix (S3Prefix), not one object."""
    is_archive: bool = True
    """A tar.gz to unpack (CompressionType Gzip)."""
    channel: str | None = None
    """AdditionalModelDataSources: unpacked to `/opt/ml/additional-model-data-sources/<channel>`'s equivalent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """What a worker is to have for itself, where a launcher reserves such things."""

    num_cpus: float
    num_accelerators: float = 0.0
    memory_bytes: int = 0
    is_at_most: bool = True
    """Less will do where there is no more: an instance type is a share of what is there. Off: less is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker, fully decided."""

    name: str
    """Unique: of its record, its folder and its log stream."""
    artifacts: tuple[ArtifactSource, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    """The container's `Environment`, and what the image profile adds to it."""
    options: dict[str, str] = field(default_factory=dict)
    """Flags of `headrace serve` that the image profile decides (dialect, dtype, ...), without their dashes."""
    command: tuple[str, ...] = ()
    """Instead of our model server: a command line of an own image; `{port}` and `{model}` are filled in."""
    artifact_timeout_s: float = 1200.0
    threads: int | None = None
    """CPU threads: its share of this host."""
    memory_bytes: int | None = None
    """Memory that its model server may plan with; nothing bounds the command of an own image. None: what is free."""
    resources: ResourceRequest | None = None
    """None: that of one CPU."""
    s3: Json = field(default_factory=dict, repr=False)
    """Endpoint and keys with which artifacts are read: `endpoint_url`, `access_key`, `secret_key`, `region`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """How to find a started worker again. JSON values only; each launcher has its own `facts`."""

    launcher: str
    url: str
    """`http://host:port` where it will listen."""
    facts: Json
    token: str = field(default="", repr=False)
    """Bearer token that it asks every request for but `/ping`; empty: none, as only this machine can reach it."""
    memory_bytes: int | None = None
    """That the machine has on which it runs; 0: nobody knows. None: it is the platform's own machine."""


class WorkerPhase(StrEnum):
    """What a worker is doing."""

    FETCHING = "fetching"
    """Its artifacts."""
    STARTING = "starting"
    """Loading; `/ping` does not yet answer 200."""
    READY = "ready"
    """`/ping` answered 200 lately."""
    UNHEALTHY = "unhealthy"
    """Was ready; the process lives, but `/ping` fails now."""
    EXITED = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is seen of a worker now."""

    phase: WorkerPhase
    exit_code: int | None = None
    """Of an exited one; None if it cannot be known (adopted), negative for a signal."""
    ended_in: WorkerPhase | None = None
    """The phase in which an exited worker ended; None if unknown."""
    message: str = ""
    """Why it failed, in one sentence, if it said so (`Error: ...` or the fetcher's refusal)."""
    notices: tuple[str, ...] = ()
    """What could not be honoured."""


class Launcher(Protocol):
    """All methods are coroutines that do not block the loop; they may be called again after any failure."""

    name: str

    async def start(self, spec: WorkerSpec) -> Handle:
        """
        Start a worker; returns as soon as it exists, long before it is ready.

        Raises:
            StartPending: it is on its way, or waits for room; call again.
            LaunchFailed: it cannot be started here; the message says why and what to do.
        """
        ...

    async def poll(self, name: str, handle: Handle) -> Observation:
        """Look at a worker, adopted or own."""
        ...

    async def stop(self, name: str, handle: Handle, *, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after `grace_s`; returns at once, `poll` says when it has exited. Idempotent."""
        ...

    async def known(self) -> dict[str, Handle]:
        """All workers that live on the launcher's machines, also those of an earlier life: orphans are among them."""
        ...

    async def forget(self, name: str) -> None:
        """Remove the folder of an exited worker, log included."""
        ...

    async def close(self) -> None:
        """End the launcher's own tasks; workers run on."""
        ...


class StartPending(Exception):
    """A worker has not started yet, and may: call `start` again. The message says what it waits for."""


class LaunchFailed(Exception):
    """A worker cannot be started; the message is a FailureReason."""


class InsufficientCapacity(LaunchFailed):
    """No machine is large enough for it."""
