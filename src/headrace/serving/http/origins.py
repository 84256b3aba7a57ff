"""
Rules for the web pages that may use the model server or the platform. Pure.

A browser sends `Origin` with every request that a page's script makes to another site, and with every POST. Without
this check any page could use a server on its visitor's machine, by the server's address or by a name that the page's
owner points there (DNS rebinding). A GET of a page to its own site has no `Origin`, so the host name is checked too.
Nor has the GET of an image or a script of a page of another site; browsers say so in `Sec-Fetch-Site` if the server has
a loopback address or TLS (https://www.w3.org/TR/fetch-metadata/).
"""

import base64
import hashlib
import html
import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from headrace.core.client_text import shortened
from headrace.serving.http.asgi import Scope, Send, header, send_response
from headrace.serving.http.pages import PAGE_HEADERS

ANY = "*"
"""The pattern of all host names, and of all origins."""


def is_origin_allowed(origin: str | None, host: str, *, allowed: Collection[str]) -> bool:
    """
    Return whether a request is from a program, from the server's own page or from an allowed one.

    `host` is its `Host`, which `is_host_allowed`; `allowed` has origins as `scheme://host:port`, and `*` allows all.
    """
    if origin is None or ANY in allowed or origin in allowed:
        return True
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def is_other_site(scope: Scope) -> bool:
    """Return whether a browser sends this for a page of another site, or opens a link in it."""
    return header(scope, b"sec-fetch-site") in ("cross-site", "same-site")


def is_foreign_load(scope: Scope) -> bool:
    """Return whether a page of another site loads this as a part of itself, such as an image; not if it is opened."""
    kind = (header(scope, b"sec-fetch-mode"), header(scope, b"sec-fetch-dest"))
    return is_other_site(scope) and header(scope, b"origin") is None and kind != ("navigate", "document")


def allowed_patterns(names: Collection[str], *, is_open: bool) -> Collection[str]:
    """
    Return the patterns of the host names that a server answers to; `names` are those of `allowed_hosts`.

    Without the setting, a server on a loopback address that needs no key (`is_open`) answers to local names only, any
    other server to all names.
    """
    return names or (() if is_open else (ANY,))


def is_host_allowed(host: str, patterns: Collection[str]) -> bool:
    """
    Return whether a server answers to the name in a `Host` header, with or without a port.

    `localhost` and addresses are always allowed, because no other owner can have them as a domain. So is a request
    without `Host`, which no browser sends. A pattern is a name in lower case, `*.example.com` for every name below that
    domain, or `*`.
    """
    if not host or ANY in patterns:
        return True
    name = name_of(host)
    below = tuple(pattern[1:] for pattern in patterns if pattern.startswith("*."))
    is_below = any(name.endswith(domain) and len(name) > len(domain) for domain in below)
    return is_local_name(name) or name in patterns or is_below


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


_NAME = re.compile(r"[a-z0-9._-]+")
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:15vh auto;padding:0 1rem}"
    "code{overflow-wrap:anywhere}:root{color-scheme:light dark}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = PAGE_HEADERS | {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
}
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Host name not allowed</title>
<style>{style}</style>
<h1>Host name not allowed</h1>
<p>This Headrace {program} does not answer to the host name <code>{host}</code>.</p>
<p>If it is yours, start the {program} with <code>--allowed-hosts {name}</code>,
or set <code>{variable}={name}</code>. <code>localhost</code> and IP addresses are always allowed.</p>
<p>If you do not know this name, close the page: its owner has pointed it at this machine.</p>
</html>
"""


def host_refusal(host: str, *, program: str) -> str:
    """Return the error text for programs; `program` is `server` or `platform`."""
    return (
        f"The host name {shortened(name_of(host))!r} is not allowed. If clients should reach this {program} by it, "
        f"start it with --allowed-hosts {_setting_of(host)}."
    )


def is_navigation(scope: Scope) -> bool:
    """Return whether a browser opens a page: scripts and programs accept other types than HTML."""
    return scope["method"] in ("GET", "HEAD") and "text/html" in (header(scope, b"accept") or "")


async def send_host_page(scope: Scope, send: Send, host: str, *, program: str, variable: str) -> None:
    """Send the page with status 403; `variable` is the environment variable of the setting."""
    page = _PAGE.format(
        style=_STYLE,
        program=program,
        host=html.escape(shortened(name_of(host))),
        name=html.escape(_setting_of(host)),
        variable=variable,
    )
    await send_response(scope, send, 403, _HEADERS.items(), page.encode())


def _setting_of(host: str) -> str:
    """Return the value of the setting that allows a host, safe to paste into a shell."""
    name = name_of(host)
    return name if _NAME.fullmatch(name) else "NAME"
