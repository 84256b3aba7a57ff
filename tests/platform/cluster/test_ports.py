"""Free ports are found, and ports in use are not."""

import socket

import pytest

from headrace.platform.cluster.ports import PLATFORM_PORTS, WORKER_PORTS, free_ports, is_free
from headrace.platform.cluster.worker_files import LOOPBACK


@pytest.mark.parametrize(("host", "family"), [(LOOPBACK, socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_port_is_free_until_a_program_listens_on_it(host: str, family: socket.AddressFamily) -> None:
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_free(port, host)
        assert list(free_ports(range(port, port + 1), host)) == []
    assert list(free_ports(range(port, port + 1), host)) == [port]


def test_free_ports_are_distinct_and_in_the_range() -> None:
    found = list(free_ports(PLATFORM_PORTS[:50]))
    assert len(set(found)) == len(found)
    assert set(found) <= set(PLATFORM_PORTS[:50])


def test_the_ranges_do_not_overlap() -> None:
    assert not set(PLATFORM_PORTS) & set(WORKER_PORTS)
