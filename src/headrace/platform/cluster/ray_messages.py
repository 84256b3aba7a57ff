"""Messages between the platform, its bridge process and the actors on a Ray cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.platform.cluster.launcher import LAUNCH_ERRORS, WorkerSpec

CHUNK_BYTES: Final = 1 << 20
"""Largest chunk of a worker's log in one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorAssignment:
    """The platform's instructions to an actor."""

    spec: WorkerSpec
    token: str = field(repr=False)
    """Bearer token that the worker must require."""
    namespace: str
    """The platform's namespace, and the name of its folder on a node."""
    log_position: int
    """Position at which this worker's lines begin in the platform's log of that name."""
    version: str
    """Version of Headrace on the platform."""
    command: tuple[str, ...] = ()
    """Command that replaces `headrace worker`."""
    isolation: dict[str, str] = field(default_factory=dict)
    """Variables of the platform that decide the sandbox of code."""
    folder: str = ""
    """Folder for workers and artifacts on the node. Empty: in the user's cache folder there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The address and options with which the bridge connects to the cluster."""

    address: str
    """`host:port` of its control service, or `ray://host:port`."""
    namespace: str
    answer_s: float = 5.0
    """Timeout of an actor's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeRequest:
    """A line of JSON to the bridge: one call."""

    number: int
    name: str
    """Name of a method of `ray_bridge.Bridge`."""
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeReply:
    """A line of JSON from the bridge: the result of one call."""

    number: int
    result: Any = None
    error: str = ""
    """Empty on success, a code of `ERRORS`, or `UNAVAILABLE`."""
    message: str = ""


class WorkerGone(Exception):
    """The worker does not exist any more: its actor or node has ended."""


class NodeLost(WorkerGone):
    """The worker has ended with its node."""


ERRORS: Final[Mapping[str, type[Exception]]] = {"gone": WorkerGone, "node lost": NodeLost, **LAUNCH_ERRORS}
"""What the bridge raises for the platform to raise again, by its code."""
UNAVAILABLE: Final = "unavailable"
"""The code of all other errors: the actor or the cluster does not answer now."""
