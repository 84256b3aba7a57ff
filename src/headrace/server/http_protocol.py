"""
Uvicorn's HTTP protocol with a short way for the pieces of a stream: from the application straight to the transport.

ASGI asks for a coroutine call a piece through every middleware, which costs several times what the write itself does.
The short way is an ASGI extension: an application that does not know it, or a server without it, loses nothing.
"""

from collections.abc import Callable
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

EXTENSION = "headrace.write_piece"

WritePiece = Callable[[bytes], bool]
"""
Writes a piece of a chunked body whose head was sent; after the client has gone it does nothing. False: the client
does not keep up, wait (with an empty piece by way of ASGI) before the next one.
"""


class StreamingProtocol(HttpToolsProtocol):
    """Offers the extension to every request."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Called by uvicorn when it is a request's turn (they may be pipelined)."""
        cast("dict[str, Any]", cycle.scope)["extensions"] = {EXTENSION: _writer(cycle)}
        super()._start_asgi_task(cycle, app)


def piece_writer(scope: Scope) -> WritePiece | None:
    """The short way, if the server offers it."""
    writer: WritePiece | None = (scope.get("extensions") or {}).get(EXTENSION)
    return writer


def _writer(cycle: RequestResponseCycle) -> WritePiece:
    write, flow = cycle.transport.write, cycle.flow

    def write_piece(piece: bytes) -> bool:
        if cycle.disconnected:
            return True
        write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return not flow.write_paused

    return write_piece
