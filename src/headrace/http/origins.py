"""
The rule which web pages may use a server, for the model server and the platform. Pure.

A browser sends `Origin` with every request that a page's script makes to another site, and with every POST. Without
this check any page could use a server on its visitor's machine, by the server's address or by a name that the page's
owner points there (DNS rebinding). Programs send no `Origin` and are not affected.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit


def is_origin_allowed(origin: str | None, host: str, *, allowed: Collection[str], names_are_trusted: bool) -> bool:
    """
    Return whether a request may be served.

    Args:
        origin: its `Origin`; None if it has none.
        host: its `Host`.
        allowed: origins that may use the server, as `scheme://host:port`; `*` allows all.
        names_are_trusted: whether a page under any host name of the server is the server's own. On a loopback address
            without a key only `localhost` and addresses are.
    """
    if origin is None or "*" in allowed or origin in allowed:
        return True
    try:
        site = urlsplit(origin)
        is_own = site.netloc.lower() == host.lower()
        return is_own and (names_are_trusted or is_local_name(site.hostname or ""))
    except ValueError:
        return False


def is_local_host(host: str) -> bool:
    """
    Return whether a `Host` header cannot be a domain of another owner.

    For responses that a page must not read even with a plain GET to a name that points here: a GET to the page's own
    site has no `Origin`.
    """
    try:
        return is_local_name(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def is_local_name(name: str) -> bool:
    """Return whether a host name, without its port, is `localhost` or an address."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
