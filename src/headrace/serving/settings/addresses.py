"""Addresses in settings of the model server and the platform. Pure."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server on `host`; names other than localhost count as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of an address that `rules.address` has read."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    return host.strip("[]"), int(port)
