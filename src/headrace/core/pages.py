"""
What the web pages of Headrace have in common: the policy that they are served with, and files that they share.

The chat page of the model server and the console of the platform are static files without a build step. What both
need (colours, streaming, Markdown, how an answer is drawn) lies in `core/web`.
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
"""A page may load nothing from elsewhere, and nobody may frame it."""
SHARED = ("base.css", "conversation.js", "dom.js", "events.js", "markdown.js", "messages.css")
"""The files of `core/web`; a page finds them beside its own."""
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def media_type(name: str) -> str:
    """What a file of a page is, by its ending."""
    return _TYPES[name.rpartition(".")[2]]


@cache
def read_page(package: str, name: str) -> bytes:
    """One file of the `web` folder of a package, or of the shared ones."""
    home = "headrace.core" if name in SHARED else package
    return files(home).joinpath("web", name).read_bytes()
