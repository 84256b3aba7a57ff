"""A TCP proxy that cuts, delays and corrupts connections, in a thread of its own."""

import asyncio
import random
import threading
from contextlib import suppress

_CHUNK_BYTES = 65_536


class Proxy:
    """Forwards connections from a port of its own to another one."""

    def __init__(self, target_port: int, *, seed: int = 0) -> None:
        self.port = 0
        self.is_refusing = False
        """New connections are closed at once."""
        self.delay_s = 0.0
        """Seconds by which each chunk of bytes is late."""
        self.corrupted_share = 0.0
        """Share of the chunks in which a byte is changed."""
        self._target_port = target_port
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._is_open = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, name=f"proxy to {target_port}", daemon=True)
        self._thread.start()
        self._is_open.wait()

    def cut(self) -> None:
        """Reset all connections."""
        self._loop.call_soon_threadsafe(self._abort_all)

    def close(self) -> None:
        """Reset all connections and stop."""
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._is_open.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_refusing:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(there_writer)
        try:
            await asyncio.gather(self._copy(reader, there_writer), self._copy(there_reader, writer))
        except asyncio.CancelledError:
            pass  # the proxy closes; asyncio's server would log it
        finally:
            for end in (writer, there_writer):
                end.transport.abort()
                self._writers.discard(end)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(self._corrupted(chunk))
                await writer.drain()
            writer.write_eof()
            return
        writer.transport.abort()

    def _corrupted(self, chunk: bytes) -> bytes:
        if self._random.random() >= self.corrupted_share:
            return chunk
        changed = bytearray(chunk)
        changed[self._random.randrange(len(changed))] ^= self._random.randint(1, 255)
        return bytes(changed)
