"""
The process through which a platform talks to a Ray cluster: one line in, one line out, in JSON.

A process of its own, because Ray ends a program that has lost its cluster for a minute, sets signal handlers and
takes a second to load. A platform whose cluster is away goes on forwarding requests to the workers that answer.

Workers are detached actors, each in a placement group of one bundle that holds its resources. They have the worker's
name in the platform's namespace, by which the next bridge finds them. Ray places them and tells when they end; whether
and when another one is started is the reconciler's decision, so that they do not restart by themselves.
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

from headrace.cluster.launcher import ResourceRequest
from headrace.cluster.ray_actor import WorkerActor, all_nodes
from headrace.cluster.ray_messages import (
    GONE,
    INSUFFICIENT_CAPACITY,
    PENDING,
    REFUSED,
    UNAVAILABLE,
    Connection,
    Reply,
    Request,
)
from headrace.cluster.ray_resources import NodeResources, format_resources, grant

_NUM_THREADS: Final = 32
_PLACING_S: Final = 1.5
"""For a node with room, the first time that it is asked for."""
_AGAIN_S: Final = 0.05
"""For the same, every other time: one that waits holds up nobody."""
_STARTING_S: Final = 0.3
"""For the actor's process, which loads Python and Ray; whoever wants it asks again."""
_KEPT_S: Final = 20.0
"""A reservation that nobody has asked for so long is given back."""


class Refused(Exception):
    """It cannot be done; the message says why."""


class TooLarge(Exception):
    """No node is large enough; the message has the numbers."""


class Gone(Exception):
    """There is no such worker any more."""


class Pending(Exception):
    """It is under way; the message says what it waits for."""


@dataclass(slots=True)
class _Start:
    """A worker that is being started."""

    asked_s: float
    """When somebody asked for it last; of a monotonic clock."""
    group: PlacementGroup | None = None
    granted: NodeResources | None = None
    answer: Any = None
    """Of its actor, to come."""


class Bridge:
    """What a platform asks of the cluster. Methods block, and are called in several threads."""

    def __init__(self, connection: Connection) -> None:
        ray.init(
            address=connection.address,
            namespace=connection.namespace,
            logging_level=logging.WARNING,
            log_to_driver=False,
        )
        self._answer_s = connection.answer_s
        self._lock = threading.Lock()
        self._actors: dict[str, Any] = {}
        self._starts: dict[str, _Start] = {}

    def start(self, name: str, assignment: str, resources: dict[str, Any]) -> dict[str, Any]:
        """Start a worker where there is room, or tell of the one of that name."""
        with self._lock:
            start = self._starts.setdefault(name, _Start(0.0))
            start.asked_s = time.monotonic()
        try:
            actor = self._actor(name)
        except Gone:
            granted = self._placed(name, start, msgspec.convert(resources, ResourceRequest))
            actor = self._make_actor(name, start, assignment.encode(), granted)
        return self._started(name, start, actor)

    def look(self, name: str, position: int) -> dict[str, Any]:
        """What a worker is doing, and more of its log."""
        seen: dict[str, Any] = self._ask(name, "look", position)
        return seen

    def stop(self, name: str, grace_s: float) -> None:
        """Ask it to stop."""
        self._ask(name, "stop", grace_s)

    def finish(self, name: str) -> None:
        """Remove what is left of a worker that has exited; one that lives is killed."""
        with contextlib.suppress(Gone, RayError):
            self._ask(name, "leave")
        self._remove(name)

    def known(self) -> dict[str, dict[str, Any]]:
        """The workers that answer, whether they still run or not; reservations that nobody uses are given back."""
        names = ray.util.list_named_actors()
        answers: dict[str, Any] = {}
        for name in names:
            with contextlib.suppress(Gone):
                answers[name] = self._actor(name).start.remote()
        if answers:
            ray.wait([*answers.values()], num_returns=len(answers), timeout=self._answer_s)
        found: dict[str, dict[str, Any]] = {}
        used = {*names}
        for name, answer in answers.items():
            try:
                started = ray.get(answer, timeout=0)
                if "refusal" not in started:
                    found[name] = self._with_memory(started)
            except ActorDiedError:
                # NOTE: the reservation of a lost node goes before all others until it is given back.
                self._forget_actor(name)
                used.discard(name)
            except RayError:
                self._forget_actor(name)
        self._give_back_reservations(used)
        return found

    def _placed(self, name: str, start: _Start, resources: ResourceRequest) -> NodeResources:
        """Reserve a place, and wait a moment for it; what it has."""
        nodes = [_node_resources(node["Resources"]) for node in _living_nodes()]
        patience_s = _AGAIN_S
        if start.group is None:
            patience_s = _PLACING_S
            start.granted = grant(resources, nodes)
            if start.granted is None:
                with self._lock:
                    self._starts.pop(name, None)
                raise TooLarge(f"No node of the cluster is large enough for it. {_resources_text(resources, nodes)}")
            self._remove_group(name)
            bundle = _bundle(start.granted)
            start.group = placement_group([bundle], strategy="STRICT_PACK", name=name, lifetime="detached")
        if not start.group.wait(patience_s):
            raise Pending(f"No node of the cluster has room for it now. {_resources_text(resources, nodes)}")
        assert start.granted is not None
        return start.granted

    def _make_actor(self, name: str, start: _Start, assignment: bytes, granted: NodeResources) -> Any:
        """Its actor, in its place."""
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
        with self._lock:
            self._actors[name] = actor
        return actor

    def _started(self, name: str, start: _Start, actor: Any) -> dict[str, Any]:
        if start.answer is None:
            start.answer = actor.start.remote()
        try:
            started: dict[str, Any] = ray.get(start.answer, timeout=_STARTING_S)
        except GetTimeoutError as error:
            raise Pending("Its node has not started it yet.") from error
        except ActorDiedError as error:
            self._remove(name)
            why = f"A node could not run it: {_last_line(error)}. Is Headrace installed on all nodes?"
            raise Refused(why) from error
        except RayError:
            start.answer = None
            raise
        if refusal := started.get("refusal"):
            self._remove(name)
            raise Refused(refusal)
        with self._lock:
            self._starts.pop(name, None)
        return self._with_memory(started)

    def _with_memory(self, started: dict[str, Any]) -> dict[str, Any]:
        """What an actor says of its start, and how much memory its node has for workers."""
        node_id = started["facts"]["node"]
        memory = next(
            (_node_resources(one["Resources"]).memory_bytes for one in all_nodes() if one["NodeID"] == node_id), 0
        )
        return {**started, "memory_bytes": memory}

    def _actor(self, name: str) -> Any:
        with self._lock:
            known = self._actors.get(name)
        if known is not None:
            return known
        try:
            actor = ray.get_actor(name)
        except ValueError as error:
            raise Gone(f"the cluster has no worker {name}") from error
        with self._lock:
            self._actors[name] = actor
        return actor

    def _ask(self, name: str, method: str, *arguments: object) -> Any:
        actor = self._actor(name)
        try:
            return ray.get(getattr(actor, method).remote(*arguments), timeout=self._answer_s)
        except ActorDiedError as error:
            self._forget_actor(name)
            raise Gone(_last_line(error)) from error

    def _forget_actor(self, name: str) -> None:
        with self._lock:
            self._actors.pop(name, None)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(Gone, RayError, ValueError):
            ray.kill(self._actor(name))
        with self._lock:
            self._actors.pop(name, None)
            self._starts.pop(name, None)
        self._remove_group(name)

    def _remove_group(self, name: str) -> None:
        try:
            group: PlacementGroup = get_placement_group(name)
        except ValueError:
            return
        remove_placement_group(group)

    def _give_back_reservations(self, used: set[str]) -> None:
        """Those of bridges that were killed in the middle of a start, and of actors that died."""
        for entry in ray.util.placement_group_table().values():
            name = entry["name"]
            with self._lock:
                start = self._starts.get(name)
                is_asked_for = start is not None and time.monotonic() - start.asked_s < _KEPT_S
            if name not in used and not is_asked_for and entry["state"] != "REMOVED":
                with self._lock:
                    self._starts.pop(name, None)
                self._remove_group(name)


def _living_nodes() -> list[dict[str, Any]]:
    return [node for node in all_nodes() if node["Alive"]]


def _node_resources(resources: dict[str, float]) -> NodeResources:
    return NodeResources(
        num_cpus=resources.get("CPU", 0.0),
        num_gpus=resources.get("GPU", 0.0),
        memory_bytes=int(resources.get("memory", 0.0)),
    )


def _bundle(granted: NodeResources) -> dict[str, float]:
    whole = {"CPU": granted.num_cpus, "GPU": granted.num_gpus, "memory": float(granted.memory_bytes)}
    return {name: number for name, number in whole.items() if number}


def _resources_text(resources: ResourceRequest, nodes: Sequence[NodeResources]) -> str:
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return format_resources(resources, nodes, _node_resources(free))


def main() -> None:
    """Answer lines from stdin until it ends; what anybody prints goes to stderr."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    lines = sys.stdin.buffer
    try:
        bridge = Bridge(msgspec.json.decode(lines.readline(), type=Connection))
    except Exception as error:  # noqa: BLE001 -- an edge: the platform has to know
        _write(out, Reply(number=0, error=UNAVAILABLE, message=_last_line(error)))
        return
    _write(out, Reply(number=0))
    writing = threading.Lock()
    pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="bridge")
    for line in lines:
        pool.submit(_answer, bridge, msgspec.json.decode(line, type=Request), out, writing)
    os._exit(0)  # the platform has ended: its workers are not ours to end


def _answer(bridge: Bridge, request: Request, out: BinaryIO, writing: threading.Lock) -> None:
    method = getattr(bridge, request.name)
    try:
        reply = Reply(number=request.number, result=method(**request.arguments))
    except Gone as error:
        reply = Reply(number=request.number, error=GONE, message=str(error))
    except TooLarge as error:
        reply = Reply(number=request.number, error=INSUFFICIENT_CAPACITY, message=str(error))
    except Refused as error:
        reply = Reply(number=request.number, error=REFUSED, message=str(error))
    except Pending as error:
        reply = Reply(number=request.number, error=PENDING, message=str(error))
    except (RayActorError, RaySystemError, GetTimeoutError) as error:
        reply = Reply(number=request.number, error=UNAVAILABLE, message=_last_line(error))
    except Exception as error:  # noqa: BLE001 -- an edge: the platform has to know
        reply = Reply(number=request.number, error=UNAVAILABLE, message=f"{type(error).__name__}: {_last_line(error)}")
    with writing:
        _write(out, reply)


def _write(out: BinaryIO, reply: Reply) -> None:
    line = msgspec.json.encode(reply) + b"\n"
    while line:
        line = line[out.write(line) :]


def _last_line(error: BaseException) -> str:
    """Ray's messages are tracebacks; what went wrong stands at their end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")


if __name__ == "__main__":
    main()
