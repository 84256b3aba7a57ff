"""Refusal of requests under a host name that the server does not answer to: a sentence, or an HTML page."""

import base64
import hashlib
import html
import re

from headrace.core.client_text import shortened
from headrace.http.asgi import Scope, Send, header
from headrace.http.origins import name_of
from headrace.http.pages import PAGE_HEADERS
from headrace.http.response import send_response

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
