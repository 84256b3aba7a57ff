"""A Ray cluster that the tests of launchers share."""

from collections.abc import Iterator

import pytest

from .ray_nodes import Nodes, ray_nodes


@pytest.fixture(scope="package")
def nodes() -> Iterator[Nodes]:
    """A head node without CPUs, and two nodes of two CPUs."""
    pytest.importorskip("ray")
    with ray_nodes(2, 2) as made:
        yield made
