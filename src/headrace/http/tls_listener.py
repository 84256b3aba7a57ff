"""
Connections of a TLS server: counted and timed from the first byte.

The servers of asyncio and uvloop report a connection only after its handshake, so that clients that connect and send
nothing would be neither counted nor dropped for a minute.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from headrace.core.telemetry import get_logger
from headrace.http.protocol import HttpLimits

_RETRY_S = 1.0
"""Pause after the system had no descriptor or memory for a connection. Source: asyncio's servers."""


class TlsListener:
    """A listening socket whose connections get their HTTP protocol after the handshake."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        limits: HttpLimits,
        num_connections: Callable[[], int],
    ) -> None:
        """
        Start accepting connections.

        Args:
            listener: a non-blocking socket that listens.
            context: the server's TLS context.
            make_protocol: creates the HTTP protocol of a connection.
            limits: the limits on connections and handshakes.
            num_connections: returns the number of connections whose handshake has ended.
        """
        self._listener = listener
        self._context = context
        self._make_protocol = make_protocol
        self._limits = limits
        self._num_connections = num_connections
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Stop accepting connections, and drop those in their handshake; called by uvicorn."""
        self._accepting.cancel()
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        """Wait until it is closed; called by uvicorn."""
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except ConnectionError:
                continue  # the client disconnected while it was queued
            except OSError as error:
                get_logger().error("http.not_accepted", reason=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            if self._num_connections() + len(self._handshakes) >= self._limits.max_connections:
                # No response: it would cost a handshake first.
                get_logger().info("http.refused", status=503, reason="The server has too many connections.")
                connection.close()
                continue
            handshake = loop.create_task(self._shake_hands(connection))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        timeout_s = self._limits.handshake_timeout_s
        with suppress(OSError):  # a TLS or connection error, or a timeout
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=timeout_s,
            )
