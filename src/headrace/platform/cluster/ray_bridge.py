"""
The bridge process between a platform and a Ray cluster: one line of JSON in, one line out.

It is a separate process because Ray ends a program that has lost its cluster for a minute, installs signal handlers and
takes a second to load. While the cluster is unreachable, the platform keeps forwarding requests to its workers.

Workers are detached actors, each in a placement group of one bundle that holds its resources. They have the worker's
name in the platform's namespace, by which the next bridge finds them. Ray places them and reports their end. They do
not restart by themselves, because replacing workers is the reconciler's decision.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import msgspec
import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayError, RaySystemError
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from headrace.platform.cluster.launcher import InsufficientCapacity, LaunchFailed, ResourceRequest, StartPending
from headrace.platform.cluster.ray_actor import WorkerActor, all_nodes
from headrace.platform.cluster.ray_messages import (
    ERRORS,
    UNAVAILABLE,
    BridgeReply,
    BridgeRequest,
    Connection,
    NodeLost,
    WorkerGone,
)
from headrace.platform.cluster.ray_resources import NodeResources, format_resources, grant, target_node

_NUM_THREADS: Final = 32
_PLACING_S: Final = 1.5
"""Longest wait for a placement when it is first requested."""
_PLACING_AGAIN_S: Final = 0.05
"""Longest wait at repeated requests: a waiting placement must not delay other calls."""
_STARTING_S: Final = 0.3
"""Longest wait for the actor's process, which loads Python and Ray; the platform calls again."""
_KEPT_S: Final = 20.0
"""Seconds without a request after which an unused reservation is released."""


@dataclass(slots=True)
class _Start:
    """A worker that is being started."""

    requested_s: float
    """When the start was last requested, on a monotonic clock."""
    group: PlacementGroup | None = None
    granted: NodeResources | None = None
    answer: Any = None
    """Ray's reference to the result of the actor's `start`."""


class Bridge:
    """The operations of a platform on the cluster. Methods block; they are called in several threads."""

    def __init__(self, connection: Connection) -> None:
        ray.init(
            address=connection.address,
            namespace=connection.namespace,
            logging_level=logging.WARNING,
            log_to_driver=False,
        )
        self._answer_s = connection.answer_s
        # Threads share both without a lock: each access is one operation of a dict.
        self._actors: dict[str, Any] = {}
        self._starts: dict[str, _Start] = {}

    def start(self, name: str, assignment: str, resources: dict[str, Any]) -> dict[str, Any]:
        """Start a worker on a node with free resources, or describe the running one of that name."""
        start = self._starts.setdefault(name, _Start(time.monotonic()))
        start.requested_s = time.monotonic()
        # An actor of this name may be that of an earlier call, or of an earlier bridge: its start goes on.
        try:
            actor = self._actor(name)
        except WorkerGone:
            granted = self._place(name, start, msgspec.convert(resources, ResourceRequest))
            actor = self._make_actor(name, start, assignment.encode(), granted)
        return self._await_start(name, start, actor)

    def look(self, name: str, position: int, node: str) -> dict[str, Any]:
        """Observe a worker on a node, and return the next chunk of its log."""
        try:
            observation: dict[str, Any] = self._call(name, "look", position)
        except WorkerGone as error:
            if any(found["NodeID"] == node and found["Alive"] for found in all_nodes()):
                raise
            raise NodeLost(str(error)) from error
        return observation

    def stop(self, name: str, grace_s: float) -> None:
        self._call(name, "stop", grace_s)

    def finish(self, name: str) -> None:
        """Remove an exited worker with its folder, actor and reservation; a running one is killed."""
        with contextlib.suppress(WorkerGone, RayError):
            self._call(name, "remove_folder")
        self._remove(name)

    def known(self) -> dict[str, dict[str, Any]]:
        """Return the workers whose actors respond, running or exited; release unused reservations."""
        names = ray.util.list_named_actors()
        results: dict[str, Any] = {}
        for name in names:
            with contextlib.suppress(WorkerGone):
                results[name] = self._actor(name).start.remote()
        if results:
            ray.wait([*results.values()], num_returns=len(results), timeout=self._answer_s)
        workers: dict[str, dict[str, Any]] = {}
        used = {*names}
        for name, result in results.items():
            try:
                started = ray.get(result, timeout=0)
                if "refusal" not in started:
                    workers[name] = self._with_memory(started)
            except ActorDiedError:
                # NOTE: until it is released, Ray places the reservation of a lost node before all others.
                self._actors.pop(name, None)
                used.discard(name)
            except RayError:
                self._actors.pop(name, None)
        self._release_reservations(used)
        return workers

    def _place(self, name: str, start: _Start, resources: ResourceRequest) -> NodeResources:
        """Reserve resources on a node, and wait briefly for them; returns the reserved resources."""
        nodes = {node["NodeID"]: _node_resources(node["Resources"]) for node in all_nodes() if node["Alive"]}
        sizes = [*nodes.values()]
        if not any(size.num_cpus for size in sizes):  # they join again after a loss of the head
            raise StartPending(f"No node of the cluster takes workers now. {_resources_text(resources, sizes)}")
        wait_s = _PLACING_AGAIN_S
        if start.group is None:
            wait_s = _PLACING_S
            start.granted = grant(resources, sizes)
            if start.granted is None:
                self._starts.pop(name, None)
                raise InsufficientCapacity(
                    f"No node of the cluster is large enough for the worker. {_resources_text(resources, sizes)}"
                )
            self._remove_group(name)
            granted = start.granted
            whole = {"CPU": granted.num_cpus, "GPU": granted.num_gpus, "memory": float(granted.memory_bytes)}
            bundle = {kind: number for kind, number in whole.items() if number}
            target = target_node(name, granted, nodes, _placed())
            start.group = placement_group(
                [bundle], strategy="STRICT_PACK", name=name, lifetime="detached", _soft_target_node_id=target
            )
        if not start.group.wait(wait_s):
            raise StartPending(
                f"No node of the cluster has enough free resources now. {_resources_text(resources, sizes)}"
            )
        assert start.granted is not None
        return start.granted

    def _make_actor(self, name: str, start: _Start, assignment: bytes, granted: NodeResources) -> Any:
        assert start.group is not None
        strategy = PlacementGroupSchedulingStrategy(start.group, placement_group_bundle_index=0)
        options: dict[str, Any] = {
            "name": name,
            "lifetime": "detached",
            "num_cpus": granted.num_cpus,
            "num_gpus": granted.num_gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": strategy,
        }
        actor = ray.remote(WorkerActor).options(**options).remote(assignment, msgspec.json.encode(granted))
        self._actors[name] = actor
        return actor

    def _await_start(self, name: str, start: _Start, actor: Any) -> dict[str, Any]:
        if start.answer is None:
            start.answer = actor.start.remote()
        try:
            started: dict[str, Any] = ray.get(start.answer, timeout=_STARTING_S)
        except GetTimeoutError as error:
            raise StartPending("The node has not started the worker yet.") from error
        except ActorDiedError as error:
            self._remove(name)
            if not error.actor_init_failed:  # its node or process ended meanwhile: the next call starts another one
                raise StartPending(f"The worker was lost while it started: {_last_line(error)}.") from error
            why = f"The node could not run the worker: {_last_line(error)}. Is Headrace installed on all nodes?"
            raise LaunchFailed(why) from error
        except RayError:
            start.answer = None
            raise
        if refusal := started.get("refusal"):
            self._remove(name)
            raise LaunchFailed(refusal)
        self._starts.pop(name, None)
        return self._with_memory(started)

    def _with_memory(self, started: dict[str, Any]) -> dict[str, Any]:
        """Add the memory of the actor's node to the result of its `start`."""
        node_id = started["facts"]["node"]
        memory = next(
            (_node_resources(node["Resources"]).memory_bytes for node in all_nodes() if node["NodeID"] == node_id), 0
        )
        return {**started, "memory_bytes": memory}

    def _actor(self, name: str) -> Any:
        if (known := self._actors.get(name)) is not None:
            return known
        try:
            actor = self._actors[name] = ray.get_actor(name)
        except ValueError as error:
            raise WorkerGone(f"the cluster has no worker {name}") from error
        return actor

    def _call(self, name: str, method: str, *arguments: object) -> Any:
        actor = self._actor(name)
        try:
            return ray.get(getattr(actor, method).remote(*arguments), timeout=self._answer_s)
        except ActorDiedError as error:
            self._actors.pop(name, None)
            raise WorkerGone(_last_line(error)) from error

    def _remove(self, name: str) -> None:
        with contextlib.suppress(WorkerGone, RayError, ValueError):
            ray.kill(self._actor(name))
        self._actors.pop(name, None)
        self._starts.pop(name, None)
        self._remove_group(name)

    def _remove_group(self, name: str) -> None:
        try:
            group: PlacementGroup = get_placement_group(name)
        except ValueError:
            return
        remove_placement_group(group)

    def _release_reservations(self, used: set[str]) -> None:
        """Release the reservations of bridges that were killed during a start, and of dead actors."""
        for entry in ray.util.placement_group_table().values():
            name = entry["name"]
            start = self._starts.get(name)
            is_requested = start is not None and time.monotonic() - start.requested_s < _KEPT_S
            if name not in used and not is_requested and entry["state"] != "REMOVED":
                self._starts.pop(name, None)
                self._remove_group(name)


def _placed() -> list[tuple[str, str]]:
    """Return the name and the node of each reservation."""
    entries = [entry for entry in ray.util.placement_group_table().values() if entry["state"] != "REMOVED"]
    return [(entry["name"], node) for entry in entries for node in entry["bundles_to_node_id"].values()]


def _node_resources(resources: dict[str, float]) -> NodeResources:
    return NodeResources(
        num_cpus=resources.get("CPU", 0.0),
        num_gpus=resources.get("GPU", 0.0),
        memory_bytes=int(resources.get("memory", 0.0)),
    )


def _resources_text(resources: ResourceRequest, nodes: Sequence[NodeResources]) -> str:
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return format_resources(resources, nodes, _node_resources(free))


def main() -> None:
    """Handle the requests on stdin until it ends. All other output goes to stderr."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    lines = sys.stdin.buffer
    try:
        bridge = Bridge(msgspec.json.decode(lines.readline(), type=Connection))
    except Exception as error:  # noqa: BLE001 -- an edge: the platform gets the reason
        _write(out, BridgeReply(number=0, error=UNAVAILABLE, message=_last_line(error)))
        return
    _write(out, BridgeReply(number=0))
    writing = threading.Lock()
    pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="bridge")
    for line in lines:
        pool.submit(_answer, bridge, msgspec.json.decode(line, type=BridgeRequest), out, writing)
    os._exit(0)  # the platform has ended; its workers keep running


def _answer(bridge: Bridge, request: BridgeRequest, out: BinaryIO, writing: threading.Lock) -> None:
    method = getattr(bridge, request.name)
    try:
        reply = BridgeReply(number=request.number, result=method(**request.arguments))
    except (RayActorError, RaySystemError, GetTimeoutError) as error:
        reply = BridgeReply(number=request.number, error=UNAVAILABLE, message=_last_line(error))
    except Exception as error:  # noqa: BLE001 -- an edge: the platform gets the reason
        code = next((code for code, kind in ERRORS.items() if type(error) is kind), UNAVAILABLE)
        message = f"{type(error).__name__}: {_last_line(error)}" if code == UNAVAILABLE else str(error)
        reply = BridgeReply(number=request.number, error=code, message=message)
    with writing:
        _write(out, reply)


def _write(out: BinaryIO, reply: BridgeReply) -> None:
    line = msgspec.json.encode(reply) + b"\n"
    while line:
        line = line[out.write(line) :]


def _last_line(error: BaseException) -> str:
    """Return the last line of Ray's message, a traceback whose end is the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")


if __name__ == "__main__":
    main()
