"""The order in which machines are asked to start a worker."""

from typing import Any

import pytest

from headrace.platform.cluster.launcher import Limits, ResourceRequest, WorkerSpec
from headrace.platform.cluster.placement import Room, in_order

GIB = 1 << 30


def room(**values: Any) -> Room:
    return Room(**{"num_cores": 8, "num_free_cores": 8, "memory_bytes": 32 * GIB, **values})


def wanted(**values: Any) -> WorkerSpec:
    return WorkerSpec(**{"name": "w", "group": "fleet", "revision": 2, **values})


GPU = ResourceRequest(num_cpus=1, num_accelerators=1)
ROOMY = ResourceRequest(num_cpus=1, memory_bytes=16 * GIB, is_at_most=False)


@pytest.mark.parametrize(
    ("spec", "rooms", "expected"),
    [
        (wanted(), {"b": room(), "a": room()}, "ab"),
        (wanted(), {"a": room(num_free_cores=2), "b": room()}, "ba"),
        (wanted(), {"a": room(copies=(("fleet", 2),)), "b": room(num_free_cores=0)}, "ba"),
        (wanted(), {"a": room(copies=(("fleet", 1), ("other", 2))), "b": room(num_free_cores=0)}, "ab"),
        (wanted(), {"a": room(memory_bytes=GIB), "b": room()}, "ba"),
        (wanted(group=""), {"a": room(copies=(("", 0),)), "b": room(num_free_cores=0)}, "ab"),
        (wanted(resources=ROOMY), {"a": room(memory_bytes=GIB), "b": room(copies=(("fleet", 2),))}, "ba"),
        (wanted(limits=Limits(memory_bytes=2 * GIB)), {"a": room(memory_bytes=GIB), "b": room(num_free_cores=0)}, "ba"),
        (wanted(resources=GPU), {"a": room(), "b": room(num_gpus=1), "c": room(num_gpus=1, num_free_gpus=1)}, "cb"),
        (wanted(resources=GPU), {"a": room(), "b": room()}, "ab"),
        (wanted(), {}, ""),
    ],
)
def test_machines_are_asked_in_the_order_of_their_room_and_copies(
    spec: WorkerSpec, rooms: dict[str, Room], expected: str
) -> None:
    assert "".join(in_order(spec, rooms)) == expected
