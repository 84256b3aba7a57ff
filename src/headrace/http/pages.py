"""
Files and security headers that the chat page and the console share.

The chat page of the model server and the console of the platform are static files without a build step. What both
need (colours, streaming, Markdown, rendering of an answer) is in `http/web`.
"""

from functools import cache
from importlib.resources import files

PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""A page may load nothing from other sites, and no site may frame it."""
SHARED = ("base.css", "conversation.js", "dom.js", "events.js", "markdown.js", "messages.css")
"""The files of `http/web`, served next to a page's own files."""
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def media_type(name: str) -> str:
    """Return the media type of a file by its extension."""
    return _TYPES[name.rpartition(".")[2]]


@cache
def read_page(package: str, name: str) -> bytes:
    """Read a file from the `web` folder of a package, or a shared file."""
    home = "headrace.http" if name in SHARED else package
    return files(home).joinpath("web", name).read_bytes()
