"""Free TCP ports for processes that get their ports when they are started."""

import random
import socket
from collections.abc import Iterator
from typing import Final

from headrace.platform.cluster.worker_files import LOOPBACK

PLATFORM_PORTS: Final = range(16_000, 20_000)
"""Ports of the platform's own services. Both ranges are below Linux's client ports (`ip_local_port_range`), so that no
connection takes a port before its process does."""
WORKER_PORTS: Final = range(20_000, 32_000)


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Return whether a program could listen on `port` now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(ports: range, host: str = LOOPBACK) -> Iterator[int]:
    """Yield the free ports of a range, in random order so that concurrent callers rarely choose the same one."""
    return (port for port in random.sample(ports, len(ports)) if is_free(port, host))
