"""
Which web pages may use a server of ours: the decision alone, for every door that speaks HTTP.

A browser sends `Origin` with every request that a page's script makes to another site, and with every POST. Without
this check any page could talk to a server on the visitor's own machine, by its address or by a name that the page's
owner points there (DNS rebinding). Programs send no `Origin` and are not affected.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit


def may_use(origin: str | None, host: str, *, allowed: Collection[str], names_are_trusted: bool) -> bool:
    """
    Whether a request may be served.

    Args:
        origin: its `Origin`; None if it brings none.
        host: its `Host`.
        allowed: origins that may use the server, as `scheme://host:port`; `*` is all.
        names_are_trusted: whether a page under any host name that leads here is the server's own. Not so on a
            loopback address without a key, where only `localhost` and addresses are.
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
    Whether a `Host` header cannot be somebody's domain.

    For answers that a page must not read even with a plain GET to a name that was pointed here: a GET to the page's
    own site brings no `Origin`.
    """
    try:
        return is_local_name(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def is_local_name(name: str) -> bool:
    """Whether a host name, without its port, cannot be somebody's domain: `localhost` or an address."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
