"""
Memory that clients make a server hold for their connections, bounded by address and in total.

A client without a key can hold memory in three ways: it does not read a response, it pipelines requests behind a
response that it does not read, and it does not finish the head of a request. Each connection has its own limits; these
are the limits for many connections together.
"""

import ipaddress
from collections import Counter

MAX_BYTES = 256 * 1024 * 1024
MAX_ADDRESS_BYTES = 64 * 1024 * 1024
"""A quarter: other clients are served while one address, or a proxy whose clients do not read, holds its part."""
_IPV6_PREFIX_BYTES = 8
"""A host chooses among the addresses of its /64 network (RFC 4291, section 2.5.1)."""


class ConnectionMemory:
    """The memory that all connections of a server hold."""

    def __init__(self, *, max_bytes: int = MAX_BYTES, max_address_bytes: int = MAX_ADDRESS_BYTES) -> None:
        self._max_bytes = max_bytes
        self._max_address_bytes = max_address_bytes
        self._by_address: Counter[bytes] = Counter()
        self.num_bytes = 0

    def add(self, address: bytes, num_bytes: int) -> bool:
        """Add bytes, or subtract negative ones; return whether both limits are kept. Bytes over a limit count too."""
        self.num_bytes += num_bytes
        self._by_address[address] += num_bytes
        if not self._by_address[address]:
            del self._by_address[address]
        return self.num_bytes <= self._max_bytes and self._by_address[address] <= self._max_address_bytes


class ConnectionShare:
    """The part that one connection holds."""

    def __init__(self, memory: ConnectionMemory, client: tuple[str, int] | None) -> None:
        self._memory = memory
        self._address = _address_of(client)
        self.num_bytes = 0

    def set(self, num_bytes: int) -> bool:
        """Replace the bytes of this connection; return False if they grew and now exceed a limit."""
        change, self.num_bytes = num_bytes - self.num_bytes, num_bytes
        return self._memory.add(self._address, change) or change <= 0


def _address_of(client: tuple[str, int] | None) -> bytes:
    """Return what counts as one address: an IPv4 address, a /64 network of IPv6, or nothing (a Unix socket)."""
    if client is None:
        return b""
    try:
        packed = ipaddress.ip_address(client[0].partition("%")[0]).packed
    except ValueError:
        return client[0].encode()
    return packed if len(packed) == ipaddress.IPV4LENGTH // 8 else packed[:_IPV6_PREFIX_BYTES]
