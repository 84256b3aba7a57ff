"""
Rules for the web pages that may use the model server or the platform. Pure.

A browser sends `Origin` with every request that a page's script makes to another site, and with every POST. Without
this check any page could use a server on its visitor's machine, by the server's address or by a name that the page's
owner points there (DNS rebinding). A GET of a page to its own site has no `Origin`, so the host name is checked too.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

ANY = "*"
"""The pattern of all host names, and of all origins."""


def is_origin_allowed(origin: str | None, host: str, *, allowed: Collection[str]) -> bool:
    """
    Return whether a request is from a program, from the server's own page or from an allowed one.

    Args:
        origin: its `Origin`; None if it has none.
        host: its `Host`, which `is_host_allowed`.
        allowed: origins that may use the server, as `scheme://host:port`; `*` allows all.
    """
    if origin is None or ANY in allowed or origin in allowed:
        return True
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def allowed_patterns(names: Collection[str], *, is_open: bool) -> Collection[str]:
    """
    Return the patterns of the host names that a server answers to.

    Args:
        names: those of the setting `allowed_hosts`.
        is_open: whether the server listens on a loopback address and needs no key. Without the setting it answers to
            local names only; any other server answers to all names.
    """
    return names or (() if is_open else (ANY,))


def is_host_allowed(host: str, patterns: Collection[str]) -> bool:
    """
    Return whether a server answers to the name in a `Host` header.

    `localhost` and addresses are always allowed, because no other owner can have them as a domain. So is a request
    without `Host`, which no browser sends.

    Args:
        host: the header, with or without a port; empty if there is none.
        patterns: other names in lower case; `*.example.com` is every name below that domain, `*` any name.
    """
    if not host or ANY in patterns:
        return True
    name = name_of(host)
    return is_local_name(name) or any(_matches(name, pattern) for pattern in patterns)


def name_of(host: str) -> str:
    """Return the name in a `Host` header, in lower case and without the port; empty if it cannot be read."""
    try:
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def is_local_name(name: str) -> bool:
    """Return whether a host name, without its port, is `localhost` or an address."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return name.endswith(pattern[1:]) and len(name) >= len(pattern)
    return name == pattern
