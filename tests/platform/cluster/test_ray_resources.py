"""The resources of a node to reserve for a worker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.cluster.launcher import ResourceRequest
from headrace.platform.cluster.ray_resources import (
    NodeResources,
    format_resources,
    grant,
    notices_of_grant,
    target_node,
)

GIB = 1 << 30
rooms = st.builds(
    ResourceRequest,
    num_cpus=st.floats(0.1, 64),
    num_accelerators=st.integers(0, 8).map(float),
    memory_bytes=st.integers(0, 512 * GIB),
    is_at_most=st.booleans(),
)
capacities = st.builds(
    NodeResources,
    num_cpus=st.integers(0, 64).map(float),
    num_gpus=st.integers(0, 8).map(float),
    memory_bytes=st.integers(0, 512 * GIB),
)


@given(rooms, st.lists(capacities, max_size=5))
def test_granted_resources_fit_a_node_and_never_exceed_the_request(
    resources: ResourceRequest, nodes: list[NodeResources]
) -> None:
    granted = grant(resources, nodes)
    wanted = NodeResources(
        num_cpus=resources.num_cpus, num_gpus=resources.num_accelerators, memory_bytes=resources.memory_bytes
    )
    if granted is None:
        assert not any(node.holds(wanted) for node in nodes)
        return
    assert wanted.holds(granted)
    assert any(node.holds(granted) for node in nodes)
    assert granted.num_cpus > 0
    if not resources.is_at_most:
        assert (granted.num_cpus, granted.memory_bytes) == (wanted.num_cpus, wanted.memory_bytes)
        assert granted.num_gpus == (wanted.num_gpus if any(node.num_gpus for node in nodes) else 0)
    assert (granted == wanted) == (notices_of_grant(resources, granted) == ())


def test_an_instance_type_with_gpus_gets_the_node_with_gpus() -> None:
    nodes = [
        NodeResources(num_cpus=64, memory_bytes=256 * GIB),
        NodeResources(num_cpus=8, num_gpus=1, memory_bytes=32 * GIB),
    ]
    resources = ResourceRequest(num_cpus=48, num_accelerators=4, memory_bytes=192 * GIB)
    assert grant(resources, nodes) == nodes[1]


def test_exact_requests_above_every_node_are_refused() -> None:
    nodes = [NodeResources(num_cpus=64), NodeResources(num_cpus=8, num_gpus=1)]
    assert grant(ResourceRequest(num_cpus=1, num_accelerators=2, is_at_most=False), nodes) is None
    assert grant(ResourceRequest(num_cpus=65, is_at_most=False), nodes) is None
    assert grant(ResourceRequest(num_cpus=1), [NodeResources(num_cpus=0)]) is None


@pytest.mark.parametrize(
    ("name", "placed", "target"),
    [
        ("e-v-3", [], None),  # Ray chooses
        ("e-v-3", [("e-v-1", "a")], "b"),
        ("e-v-3", [("e-v-1", "a"), ("f-v-1", "b")], "c"),  # of two without a copy, the one with fewer workers
        ("e-v-3", [("e-v-1", "a"), ("e-v-2", "b"), ("f-v-1", "c")], "c"),
        ("e-v-4", [("e-v-1", "a"), ("e-v-2", "b"), ("e-v-3", "c")], None),
        ("e-v-4", [("e-v-1", "a"), ("e-v-2", "a"), ("e-v-3", "lost")], "b"),
        ("w", [("other", "a")], None),  # no fleet
    ],
)
def test_a_copy_goes_to_a_node_with_the_fewest_of_its_fleet(
    name: str, placed: list[tuple[str, str]], target: str | None
) -> None:
    nodes = {node: NodeResources(num_cpus=2) for node in "abc"} | {"small": NodeResources(num_cpus=0)}
    assert target_node(name, NodeResources(num_cpus=1), nodes, placed) == target


def test_equal_nodes_are_listed_once() -> None:
    nodes = [NodeResources(num_cpus=2, memory_bytes=GIB)] * 3 + [NodeResources(num_cpus=0)]
    text = format_resources(ResourceRequest(num_cpus=4, num_accelerators=1), nodes, NodeResources(num_cpus=1.5))
    assert text == (
        "Requested on one node: 4 CPU and 1 GPU. Nodes: 3 x 2 CPU and 1 GiB of memory; 0 CPU. "
        "Free on all together: 1.5 CPU."
    )
