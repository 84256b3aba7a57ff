"""The ports that processes listen on. Source: Linux `proc(5)`."""

import ipaddress
import re
import socket
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_LISTEN = "0A"


def descendants(pid: int) -> set[int]:
    """Return the running descendants of a process."""
    found, new = set[int](), {pid}
    while new:
        found |= new
        new = {child for pid in new for child in _children(pid)} - found
    return found - {pid}


def listening(pids: Collection[int]) -> set[tuple[IPAddress, int]]:
    """Return the addresses and ports that the processes listen on."""
    inodes = {inode for pid in pids for inode in _sockets(pid)}
    return {(address, port) for address, port, inode in _table() if inode in inodes}


def _children(pid: int) -> list[int]:
    try:
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def _sockets(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if match := re.fullmatch(r"socket:\[(\d+)\]", str(entry.readlink())):
                    yield match[1]


def _table() -> Iterator[tuple[IPAddress, int, str]]:
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            address, _, port = fields[1].partition(":")
            if fields[3] == _LISTEN:
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                found = ipaddress.ip_address(socket.inet_ntop(family, b"".join(words)))
                yield getattr(found, "ipv4_mapped", None) or found, int(port, 16), fields[9]
