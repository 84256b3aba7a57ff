"""
Requests for which no client waits, such as those of a batch: the engine runs them after all others.

A request says so by a header, which the gateway passes on to the worker. A client may send it, too.
"""

from typing import Final

from headrace.serving.http.asgi import Scope, header

BACKGROUND: Final = "background"
PRIORITY_HEADER: Final = "x-headrace-priority"
BACKGROUND_HEADERS: Final = {PRIORITY_HEADER: BACKGROUND}


def is_background(scope: Scope) -> bool:
    return (header(scope, PRIORITY_HEADER.encode()) or "").strip().lower() == BACKGROUND
