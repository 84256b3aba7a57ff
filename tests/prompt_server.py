"""Uvicorn for tests: it stops without delay."""

import asyncio
import contextlib
import socket
from functools import partial
from typing import Any

import uvicorn

from headrace.serving.http.connection_memory import ConnectionMemory
from headrace.serving.http.protocol import StreamingProtocol
from headrace.serving.http.server import http_limits
from headrace.serving.settings.platform_settings import PlatformSettings

END_S = 0.1
"""Time for connections to end; uvicorn always sleeps this long."""
PLATFORM_HTTP: Any = partial(StreamingProtocol, limits=http_limits(PlatformSettings()), memory=ConnectionMemory())
"""The HTTP protocol with the limits of a platform, for `uvicorn.Config(http=...)`."""


class PromptServer(uvicorn.Server):
    """A server that stops at once; uvicorn's own polls ten times a second, too slow for hundreds of servers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Stop soon, even with requests in flight; callable from any thread."""
        self.should_exit = self.force_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
                self._loop.call_soon_threadsafe(self._told.set)

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        connections = self.server_state.connections
        for connection in list(connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()  # a server stopped before its main loop stores none
        deadline_s = loop.time() + END_S
        while connections and loop.time() < deadline_s:
            await asyncio.sleep(0.001)
