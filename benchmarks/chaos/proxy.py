"""A TCP proxy that cuts, delays and corrupts connections, in a thread of its own."""

import asyncio
import random
import socket
import struct
import threading
from contextlib import suppress

_CHUNK_BYTES = 65_536
_CLOSE_S = 10.0
"""Longest wait for the end of the thread, which is a daemon: a run ends in any case."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing resets the connection."""


class Proxy:
    """Forwards connections from a port of its own to another one."""

    def __init__(self, target_port: int, *, seed: int = 0) -> None:
        self.is_refusing = False
        """New connections are closed at once."""
        self.delay_s = 0.0
        """Seconds by which each chunk of bytes is late."""
        self.corrupted_share = 0.0
        """Share of the chunks in which a byte is changed."""
        self._target = ("127.0.0.1", target_port)
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        """Task of a connection → the client's end, which is closed here if the task is cancelled before it begins."""
        self._thread = threading.Thread(target=self._run, name=f"proxy to {target_port}", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._cut)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._forward())
        self._loop.close()

    async def _forward(self) -> None:
        with self._listener:
            self._loop.add_reader(self._listener, self._accept)
            await self._is_over.wait()
            self._loop.remove_reader(self._listener)
        tasks = list(self._connections)
        self._cut()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # the client is gone
            return
        client.setblocking(False)
        if self.is_refusing:
            _reset(client)
            return
        task = self._loop.create_task(self._serve(client))
        self._connections[task] = client
        task.add_done_callback(lambda task: _reset(self._connections.pop(task)))

    def _cut(self) -> None:
        for task in self._connections:
            task.cancel()

    async def _serve(self, client: socket.socket) -> None:
        """Copy both ways until both ends are done; the caller resets the client's end if it is still open."""
        target = socket.socket()
        target.setblocking(False)
        try:
            await self._loop.sock_connect(target, self._target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(client, target))
                group.create_task(self._copy(target, client))
            for end in (client, target):  # without a reset, which would drop what is still on its way
                end.close()
        except* OSError:
            pass  # an end was reset, or the target refuses: so is the other end
        finally:
            _reset(target)

    async def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while chunk := await self._loop.sock_recv(source, _CHUNK_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self._loop.sock_sendall(sink, self._corrupted(chunk))
        sink.shutdown(socket.SHUT_WR)

    def _corrupted(self, chunk: bytes) -> bytes:
        if self._random.random() >= self.corrupted_share:
            return chunk
        changed = bytearray(chunk)
        changed[self._random.randrange(len(changed))] ^= self._random.randint(1, 255)
        return bytes(changed)


def _reset(connection: socket.socket) -> None:
    """Close a connection; what its peer has not read yet is lost."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()
