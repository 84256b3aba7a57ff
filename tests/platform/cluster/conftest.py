"""A Ray cluster that the tests of launchers share."""

from collections.abc import Iterator

import pytest

from .ray_nodes import NODE_CPUS, Nodes, ray_nodes


@pytest.fixture(scope="package")
def nodes() -> Iterator[Nodes]:
    """A head node without CPUs, and two nodes."""
    pytest.importorskip("ray")
    with ray_nodes(NODE_CPUS, NODE_CPUS) as made:
        yield made
