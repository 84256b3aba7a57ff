"""How much of a node a worker gets."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.launcher import Room
from headrace.cluster.ray_room import Capacity, grant, notices_of_grant, room_words

GIB = 1 << 30
rooms = st.builds(
    Room,
    num_cpus=st.floats(0.1, 64),
    num_accelerators=st.integers(0, 8).map(float),
    memory_bytes=st.integers(0, 512 * GIB),
    is_at_most=st.booleans(),
)
capacities = st.builds(
    Capacity,
    num_cpus=st.integers(0, 64).map(float),
    num_gpus=st.integers(0, 8).map(float),
    memory_bytes=st.integers(0, 512 * GIB),
)


@given(rooms, st.lists(capacities, max_size=5))
def test_what_is_granted_fits_on_a_node_and_is_never_more_than_was_wanted(room: Room, nodes: list[Capacity]) -> None:
    granted = grant(room, nodes)
    wanted = Capacity(num_cpus=room.num_cpus, num_gpus=room.num_accelerators, memory_bytes=room.memory_bytes)
    if granted is None:
        assert not any(node.holds(wanted) for node in nodes)
        return
    assert wanted.holds(granted)
    assert any(node.holds(granted) for node in nodes)
    assert granted.num_cpus > 0
    if not room.is_at_most:
        assert (granted.num_cpus, granted.memory_bytes) == (wanted.num_cpus, wanted.memory_bytes)
        assert granted.num_gpus == (wanted.num_gpus if any(node.num_gpus for node in nodes) else 0)
    assert (granted == wanted) == (notices_of_grant(room, granted) == ())


def test_a_share_goes_where_the_gpus_are() -> None:
    nodes = [Capacity(num_cpus=64, memory_bytes=256 * GIB), Capacity(num_cpus=8, num_gpus=1, memory_bytes=32 * GIB)]
    room = Room(num_cpus=48, num_accelerators=4, memory_bytes=192 * GIB)
    assert grant(room, nodes) == nodes[1]


def test_what_has_to_be_there_is_refused_where_it_is_not() -> None:
    nodes = [Capacity(num_cpus=64), Capacity(num_cpus=8, num_gpus=1)]
    assert grant(Room(num_cpus=1, num_accelerators=2, is_at_most=False), nodes) is None
    assert grant(Room(num_cpus=65, is_at_most=False), nodes) is None
    assert grant(Room(num_cpus=1), [Capacity(num_cpus=0)]) is None


def test_the_numbers_are_said_once_for_nodes_that_are_alike() -> None:
    nodes = [Capacity(num_cpus=2, memory_bytes=GIB)] * 3 + [Capacity(num_cpus=0)]
    words = room_words(Room(num_cpus=4, num_accelerators=1), nodes, Capacity(num_cpus=1.5))
    assert words == (
        "Wanted on one node: 4 CPU and 1 GPU. Nodes: 3 x 2 CPU and 1 GiB of memory; 0 CPU. "
        "Free on all together: 1.5 CPU."
    )
