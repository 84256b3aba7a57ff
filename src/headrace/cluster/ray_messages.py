"""What passes between the platform, its bridge process and the actors on a Ray cluster. Values only."""

from dataclasses import dataclass, field
from typing import Any, Final

from headrace.cluster.launcher import WorkerSpec

CHUNK_BYTES: Final = 1 << 20
"""Of a worker's log, in one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorAssignment:
    """What an actor is to run."""

    spec: WorkerSpec
    token: str = field(repr=False)
    """Bearer token that the worker has to ask for."""
    namespace: str
    """The platform's own: its workers on a node lie below a folder of this name."""
    log_position: int
    """Where the log of this worker begins in what the platform keeps of its name."""
    version: str
    """Of Headrace on the platform."""
    command: tuple[str, ...] = ()
    """Instead of `headrace worker`."""
    folder: str = ""
    """On the node, for workers and artifacts. Empty: in the user's cache folder there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How the bridge reaches the cluster."""

    address: str
    """`host:port` of its control service, or `ray://host:port`."""
    namespace: str
    answer_s: float = 5.0
    """Longest for an actor to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One line to the bridge."""

    number: int
    name: str
    """Of a method of `ray_bridge.Bridge`."""
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One line from the bridge."""

    number: int
    result: Any = None
    error: str = ""
    """Empty if it went well; else one of the words below."""
    message: str = ""


GONE: Final = "gone"
"""There is no such worker any more: its actor, or the node of it, has ended."""
UNAVAILABLE: Final = "unavailable"
"""It, or the cluster, does not answer now."""
PENDING: Final = "pending"
"""It is under way; ask again."""
INSUFFICIENT_CAPACITY: Final = "no room"
"""No node is large enough; the message has the numbers."""
REFUSED: Final = "refused"
"""It cannot be done; the message says why."""
