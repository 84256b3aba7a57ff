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
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Final

import msgspec
import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayError, RaySystemError
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from headrace.cluster.ray_actor import Keeper, all_nodes
from headrace.cluster.ray_messages import GONE, REFUSED, UNAVAILABLE, Connection, Need, Reply, Request

_NUM_THREADS: Final = 32
_PLACING_S: Final = 12.0
"""For a node with room. The reconciler waits 30 s for a start."""
_STARTING_S: Final = 15.0
"""For the actor's process, which loads Python and Ray."""
_CALL_S: Final = 5.0
"""For an actor to answer."""


class Refused(Exception):
    """It cannot be done; the message says why."""


class Gone(Exception):
    """There is no such worker any more."""


class Bridge:
    """What a platform asks of the cluster. Methods block, and are called in several threads."""

    def __init__(self, connection: Connection) -> None:
        ray.init(
            address=connection.address,
            namespace=connection.namespace,
            logging_level=logging.WARNING,
            log_to_driver=False,
        )
        self._lock = threading.Lock()
        self._actors: dict[str, Any] = {}
        self._starting: set[str] = set()

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes that live."""
        return [
            {
                "id": node["NodeID"],
                "address": node["NodeManagerAddress"],
                "cpus": node["Resources"].get("CPU", 0.0),
                "gpus": node["Resources"].get("GPU", 0.0),
                "memory_bytes": node["Resources"].get("memory", 0.0),
            }
            for node in all_nodes()
            if node["Alive"]
        ]

    def start(self, name: str, order: str, need: dict[str, float]) -> dict[str, Any]:
        """Start a worker where there is room, or tell of the one of that name."""
        with self._lock:
            self._starting.add(name)
        try:
            try:
                actor = self._actor(name)
            except Gone:
                actor = self._placed(name, order.encode(), msgspec.convert(need, Need))
            return self._started(name, actor)
        finally:
            with self._lock:
                self._starting.discard(name)

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
        found: dict[str, dict[str, Any]] = {}
        for name in names:
            try:
                started = self._ask(name, "start")
                if "refusal" not in started:
                    found[name] = started
            except (Gone, RayError):
                continue
        self._give_back_reservations({*names})
        return found

    def _placed(self, name: str, order: bytes, need: Need) -> Any:
        """An actor in a place of its own."""
        if not any(node["cpus"] >= need.num_cpus and node["gpus"] >= need.num_gpus for node in self.nodes()):
            raise Refused(f"No node of the cluster is large enough for it. {self._room(need)}")
        bundle = {"CPU": need.num_cpus, **({"GPU": need.num_gpus} if need.num_gpus else {})}
        self._remove_group(name)
        group = placement_group([bundle], strategy="STRICT_PACK", name=name, lifetime="detached")
        if not group.wait(_PLACING_S):
            remove_placement_group(group)
            raise Refused(f"No node of the cluster has room for it within {_PLACING_S:g} s. {self._room(need)}")
        options: dict[str, Any] = {
            "name": name,
            "lifetime": "detached",
            "num_cpus": need.num_cpus,
            "num_gpus": need.num_gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
        }
        return ray.remote(Keeper).options(**options).remote(order)

    def _started(self, name: str, actor: Any) -> dict[str, Any]:
        try:
            started: dict[str, Any] = ray.get(actor.start.remote(), timeout=_STARTING_S)
        except ActorDiedError as error:
            self._remove(name)
            why = f"A node could not run it: {_last_line(error)}. Is Headrace installed on all nodes?"
            raise Refused(why) from error
        except GetTimeoutError:
            self._remove(name)
            raise
        if refusal := started.get("refusal"):
            self._remove(name)
            raise Refused(refusal)
        with self._lock:
            self._actors[name] = actor
        return started

    def _room(self, need: Need) -> str:
        wanted = f"{need.num_cpus:g} CPU" + (f" and {need.num_gpus:g} GPU" if need.num_gpus else "")
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        has = ", ".join(f"{node['cpus']:g} CPU" for node in self.nodes())
        return f"Wanted: {wanted} on one node; nodes: {has}; free in all: {free.get('CPU', 0):g} CPU."

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
            return ray.get(getattr(actor, method).remote(*arguments), timeout=_CALL_S)
        except ActorDiedError as error:
            with self._lock:
                self._actors.pop(name, None)
            raise Gone(_last_line(error)) from error

    def _remove(self, name: str) -> None:
        with contextlib.suppress(Gone, RayError, ValueError):
            ray.kill(self._actor(name))
        with self._lock:
            self._actors.pop(name, None)
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
                is_ours = name not in used and name not in self._starting
            if is_ours and entry["state"] != "REMOVED":
                self._remove_group(name)


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
    except Refused as error:
        reply = Reply(number=request.number, error=REFUSED, message=str(error))
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
