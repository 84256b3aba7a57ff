"""
The network between gateways and workers, and its delays.

A connection is a `ClientConnection` of the real HTTP client; its bytes go to a simulated worker and back, each after a
drawn delay and in order, as TCP promises. A process that is cut off connects to nothing, and its connections are silent
until it is back or they are closed.
"""

import asyncio
import random
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tests.simulation.loop import Process, SimulatedLoop

LATENCY_S = (0.0002, 0.003)
"""Usual delay of a message, shortest and longest."""
SLOW_S = (0.05, 1.5)
"""Delay of a message while the network is slow."""
DATABASE_S = (0.0005, 0.02)


class Endpoint(Protocol):
    """A worker at the end of connections."""

    def received(self, connection: "Connection", data: bytes) -> None:
        """Take the bytes of a whole request."""
        ...


@dataclass(frozen=True, slots=True)
class _Socket:
    port: int

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", self.port


class Connection(asyncio.Transport):
    """The client's end of a connection; the server answers by `send` and ends it by `lose`."""

    def __init__(self, network: "Network", process: "Process", port: int) -> None:
        super().__init__({"socket": _Socket(port)})
        self.process = process
        self.port = port
        self.protocol: Any = None
        self._network = network
        self._context = copy_context()
        self._there_s = self._back_s = 0.0
        """When the latest message of a direction arrives."""
        self._is_closed = False

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        """Send a request to the worker."""
        self._there_s = max(self._there_s, self._network.arrival_s(self.process))
        self._network.loop.call_at(self._there_s, self._deliver, bytes(data), context=self._network.context)

    def _deliver(self, data: bytes) -> None:
        server = self._network.servers.get(self.port)
        if self._is_closed:
            return
        if server is None:
            self.lose()
        else:
            server.received(self, data)

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""
        self._to_client(lambda: self.protocol.data_received(data))

    def lose(self) -> None:
        """End the connection, as the kernel does for a process that has died."""
        self._to_client(lambda: self._end(ConnectionResetError("Connection reset by peer")))

    def _to_client(self, action: Callable[[], None]) -> None:
        self._back_s = max(self._back_s, self._network.arrival_s(self.process))
        self._network.loop.call_at(
            self._back_s, lambda: None if self._is_closed else action(), context=self._context.copy()
        )

    def _end(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._network.connections.pop(self, None)
            self.protocol.connection_lost(error)

    def abort(self) -> None:
        if not self._is_closed:
            self._network.loop.call_soon(self._end, None)

    close = abort

    def is_closing(self) -> bool:
        return self._is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@dataclass(slots=True, eq=False)
class Network:
    """All connections, and who is cut off from what."""

    loop: "SimulatedLoop"
    rng: random.Random
    servers: dict[int, Endpoint] = field(default_factory=dict)
    """By port."""
    connections: dict[Connection, None] = field(default_factory=dict)
    cut_from_workers: dict["Process", float] = field(default_factory=dict)
    """Process → when its network to the workers works again."""
    cut_from_database: dict["Process", float] = field(default_factory=dict)
    slow_until_s: float = 0.0
    context: Any = field(default_factory=copy_context)
    """The context of the machine on which workers run."""

    def delay_s(self) -> float:
        """Draw the delay of one message."""
        return self.rng.uniform(*(SLOW_S if self.loop.now_s < self.slow_until_s else LATENCY_S))

    def database_delay_s(self, process: "Process") -> float:
        """Draw the delay of a function on another thread, which usually asks the database."""
        is_slow = self.loop.now_s < self.slow_until_s
        return self.rng.uniform(*(SLOW_S if is_slow and not process.is_dead else DATABASE_S))

    def arrival_s(self, process: "Process") -> float:
        """Draw when a message from or to a process arrives: after the network works again, if it is cut off."""
        return max(self.loop.now_s, self.cut_from_workers.get(process, 0.0)) + self.delay_s()

    async def connect(self, factory: Callable[[], Any], port: int, process: "Process") -> tuple[Any, Any]:
        """Connect a process to a port; raises `OSError`."""
        await asyncio.sleep(self.delay_s())
        if self.loop.now_s < self.cut_from_workers.get(process, 0.0):
            await asyncio.sleep(60.0)  # dropped packets: longer than any caller waits
        if port not in self.servers:
            raise ConnectionRefusedError(111, "Connection refused")
        connection = Connection(self, process, port)
        connection.protocol = factory()
        self.connections[connection] = None
        connection.protocol.connection_made(connection)
        return connection, connection.protocol

    def drop_process(self, process: "Process") -> None:
        """Forget the connections of a process that has died."""
        for connection in [found for found in self.connections if found.process is process]:
            connection._is_closed = True
            del self.connections[connection]
