"""
The `Launcher` protocol: starts, observes and stops workers for the reconciler.

A worker outlives the platform's process. Its `Handle`, which is stored in its record, is enough to find it again: the
next platform process adopts the worker by polling with the handle.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from headrace.platform.state.records import Json
from headrace.serving.artifacts.sources import ArtifactSource, ObjectGrant


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """The resources to reserve for a worker, for launchers that reserve resources."""

    num_cpus: float
    num_accelerators: float = 0.0
    memory_bytes: int = 0
    is_at_most: bool = True
    """True: accept less if no node has this much, because instance types are shares of a node. False: refuse it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Declared cores and memory of a worker, which are its upper bounds too; None: not declared."""

    num_cpus: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEngine:
    """The program that runs containers."""

    name: str = ""
    """`docker` or `podman`."""
    program: str = ""
    """Its path."""
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    """Its environment: where its daemon and its credentials for registries are."""
    runtime: str = ""
    """The runtime of its containers; empty: its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerImage:
    """An image to run as a container; all but its `uri` is filled in by the launcher."""

    uri: str
    """As in `CreateModel`."""
    engine: ContainerEngine = field(default_factory=ContainerEngine)
    name: str = ""
    """Name of the container."""
    platform: str = ""
    """Label that identifies the platform's containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrefix:
    """The models of a multi-model endpoint, which its workers load on demand."""

    prefix: str
    """Address of the folder that has them, with a slash at the end."""
    is_caching: bool = True
    """False: a model is unloaded after its last request (ModelCacheSetting Disabled)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """The complete specification of one worker."""

    name: str
    """Unique name of its record, folder and log stream."""
    artifacts: tuple[ArtifactSource, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    """The container's `Environment`, with the additions of the image profile."""
    family: str = ""
    """Kind of the container's image, which decides what runs a user's code; empty: unknown."""
    options: dict[str, str] = field(default_factory=dict)
    """Flags of `headrace serve` that the image profile sets (dialect, dtype, ...), without dashes."""
    command: tuple[str, ...] = ()
    """Command line of a custom image, run instead of our model server; `{port}` and `{model}` are replaced."""
    containers: tuple["WorkerSpec", ...] = ()
    """The containers of a model with several, which are processes of one worker; it has nothing to serve itself."""
    is_direct: bool = False
    """True: each request names one of `containers`; False: they are a pipeline."""
    runs_code: bool = False
    """True for a container that is known to hold no language model: it needs no share of the instance's memory."""
    image: ContainerImage | None = None
    """Image to run as a container, for launchers that can. None: a process runs the command or our model server."""
    artifact_timeout_s: float = 1200.0
    threads: int | None = None
    """CPU threads that it would use on an empty host; the launcher may give it fewer."""
    memory_bytes: int | None = None
    """Memory that its model server plans with; commands of custom images are not limited. None: the free memory."""
    limits: Limits = field(default_factory=Limits)
    """Limits that the kernel enforces, where it can."""
    resources: ResourceRequest | None = None
    """None: one CPU."""
    group: str = ""
    """Its fleet; workers of the same fleet and another `revision` replace each other. Empty: none."""
    revision: int = 0
    grants: tuple[ObjectGrant, ...] = field(default=(), repr=False)
    """The objects in the object storage that it may read."""
    models: ModelPrefix | None = None
    """Set for a worker that loads models on demand, each into a worker of its own by the rest of this specification."""

    @property
    def is_own_server(self) -> bool:
        """True if the worker listens itself; False for the command or the container of a custom image."""
        return self.image is None and not self.command


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """The identity of a started worker, enough to find it again. JSON values; `facts` depends on the launcher."""

    launcher: str
    url: str
    """URL where the worker will listen, as `HttpClient` takes it: with its certificate if other machines reach it."""
    facts: Json
    token: str = field(default="", repr=False)
    """Bearer token that the worker requires of all requests but `/ping`; empty if only this machine can reach it."""
    memory_bytes: int | None = None
    """Memory of the worker's machine; 0 if unknown. None: the worker runs on the platform's machine."""


class WorkerPhase(StrEnum):
    """The phase of a worker's life, as observed."""

    FETCHING = "fetching"
    """Downloading its artifacts."""
    STARTING = "starting"
    """Loading the model; `/ping` does not answer 200 yet."""
    READY = "ready"
    """`/ping` answers 200."""
    UNHEALTHY = "unhealthy"
    """Has been ready; the process runs, but `/ping` fails now."""
    EXITED = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The observed state of a worker."""

    phase: WorkerPhase
    exit_code: int | None = None
    """Exit code of an exited worker, negative for a signal; None if unknown, as for an adopted worker."""
    ended_in: WorkerPhase | None = None
    """The phase in which an exited worker ended; None if unknown."""
    message: str = ""
    """Reason of a failure in one sentence, if the worker logged one (`Error: ...`) or `was_lost`."""
    cause: str = ""
    """Likely cause of an exited worker's end; empty if its exit code or `message` says enough."""
    is_blameless: bool = False
    """True if its whole machine was lost: it is replaced at once, and counts as no failure of the worker."""
    was_lost: bool = False
    """The worker ended with its machine, or its cluster ended it: another one may succeed."""
    notices: tuple[str, ...] = ()
    """Settings that could not be honoured, in sentences."""
    placement: str = ""
    """Sentence with the GPUs that it runs on; empty: none."""
    container: str = ""
    """Which of several containers is not ready, or has ended; empty: none, or there is one container."""


class Launcher(Protocol):
    """Starts, observes and stops workers. No method blocks the event loop; all may be retried after any failure."""

    name: str

    async def start(self, spec: WorkerSpec) -> Handle:
        """
        Start a worker, or return the handle of the running one of that name; does not wait until it is ready.

        Raises:
            StartPending: the worker is being started, or waits for resources; call again.
            LaunchFailed: the worker cannot be started here; the message has the reason and a remedy.
        """
        ...

    async def poll(self, name: str, handle: Handle) -> Observation:
        """Observe a worker, started or adopted."""
        ...

    async def stop(self, name: str, handle: Handle, *, grace_s: float) -> None:
        """Send SIGTERM now and SIGKILL after `grace_s`. Returns at once: poll for the exit. Idempotent."""
        ...

    async def known(self) -> dict[str, Handle]:
        """Return all running workers on the launcher's machines, including orphans and those of earlier platforms."""
        ...

    async def forget(self, name: str) -> None:
        """Remove the folder of an exited worker with its log."""
        ...

    async def close(self) -> None:
        """End the launcher's own tasks; workers keep running."""
        ...


class StartPending(Exception):
    """The worker has not started yet: call `start` again. The message names what it waits for."""


class LaunchFailed(Exception):
    """The worker cannot be started; the message is a FailureReason."""


class InsufficientCapacity(LaunchFailed):
    """No machine is large enough for the worker."""


LAUNCH_ERRORS: Final[Mapping[str, type[Exception]]] = {
    "pending": StartPending,
    "insufficient capacity": InsufficientCapacity,
    "refused": LaunchFailed,
}
"""What `start` raises, by the code that names it to another process."""


class Grants(Protocol):
    """Decides what a worker may read. Methods block; a failure is in the grant, for the worker to report."""

    def for_worker(self, spec: WorkerSpec) -> tuple[ObjectGrant, ...]:
        """Return the grants for everything that a worker's specification names."""
        ...

    def for_uri(self, uri: str) -> ObjectGrant | None:
        """Return the grant for the artifacts of an adapter; None if they are not in object storage."""
        ...


class NoGrants:
    """Grants nothing: there is no object storage."""

    def for_worker(self, _spec: WorkerSpec) -> tuple[ObjectGrant, ...]:
        return ()

    def for_uri(self, _uri: str) -> ObjectGrant | None:
        return None


NO_GRANTS: Final = NoGrants()
