"""The platform's side of the bridge to a Ray cluster: starts and calls the bridge process, replaces it if it ends."""

import asyncio
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.core.telemetry import get_logger
from headrace.platform.cluster.ray_head import ON_LOOPBACK, QUIET, HeadFailed, RayHead
from headrace.platform.cluster.ray_messages import ERRORS, BridgeReply, BridgeRequest, Connection

_COMMAND: Final = (sys.executable, "-P", "-m", "headrace.platform.cluster.ray_bridge")
CONNECT_S: Final = 25.0
"""Longest wait of a call for the connection. Normally Ray takes one to three seconds."""
_GIVE_UP_S: Final = 180.0
"""Timeout of an attempt to connect, which outlasts the calls that wait: a busy machine takes a minute to load Ray."""
_PAUSE_S: Final = 2.0
"""Pause between two attempts to connect."""
_LINE_BYTES: Final = 8 << 20
_HEAD_S: Final = 180.0
"""Timeout of starting a cluster on this machine; normally five to ten seconds."""


class ClusterUnreachable(TimeoutError):
    """The cluster, or the node of a worker, does not answer now; try again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BridgeProcess:
    """A bridge process and the streams to it."""

    process: "subprocess.Popen[bytes]"
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def end(self) -> None:
        self.writer.close()
        self.process.kill()
        await asyncio.to_thread(self.process.wait)


class RayLink:
    """Calls to the cluster through one bridge process, which ends with this process."""

    def __init__(
        self,
        connection: Connection,
        *,
        environment: Mapping[str, str],
        log: Path,
        connect_s: float = CONNECT_S,
        head: RayHead | None = None,
    ) -> None:
        """Prepare to connect as `RayLauncher` describes; nothing is started yet. Ray's output goes to `log`."""
        self._connection = connection
        self._environment = environment
        self._log = log
        self._connect_s = connect_s
        self._head = head
        self._numbers = itertools.count(1)
        self._bridge: _BridgeProcess | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[BridgeReply]] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._connecting_since_s = 0.0
        self._failed: tuple[float, str] | None = None

    async def call(self, method: str, timeout_s: float, **arguments: Any) -> Any:
        """
        Call a method of `ray_bridge.Bridge`.

        Raises:
            ClusterUnreachable: the cluster does not answer now.
            StartPending: the start is in progress; call again.
            WorkerGone: the worker has ended with its actor or node.
            LaunchFailed: the worker cannot be started.
        """
        await self._connect()
        assert self._bridge is not None
        number = next(self._numbers)
        line = msgspec.json.encode(BridgeRequest(number=number, name=method, arguments=arguments)) + b"\n"
        reply: asyncio.Future[BridgeReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            async with asyncio.timeout(timeout_s):
                self._bridge.writer.write(line)
                await self._bridge.writer.drain()
                answer = await reply
        except TimeoutError:
            why = f"The Ray cluster {self._connection.address} did not answer within {timeout_s:g} s."
            raise ClusterUnreachable(why) from None
        except OSError as error:
            raise ClusterUnreachable(f"The connection to Ray has ended: {error}.") from error
        finally:
            self._waiting.pop(number, None)
        if not answer.error:
            return answer.result
        if (kind := ERRORS.get(answer.error)) is not None:
            raise kind(answer.message)
        raise ClusterUnreachable(f"The Ray cluster {self._connection.address} does not answer: {answer.message}.")

    async def close(self) -> None:
        """End the bridge process, and an attempt to connect."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        await self._end_process()

    async def _end_process(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _connect(self) -> None:
        """Wait for the connection, which is made in the background: a caller that gives up does not start it over."""
        if self._is_connected():
            return
        if self._connecting is None:
            if self._failed is not None and time.monotonic() - self._failed[0] < _PAUSE_S:
                raise ClusterUnreachable(self._failed[1])
            self._connecting_since_s = time.monotonic()
            self._connecting = asyncio.create_task(self._establish(), name="ray-connect")
        left_s = self._connecting_since_s + self._connect_s - time.monotonic()
        done, _ = await asyncio.wait({self._connecting}, timeout=max(left_s, 0.0))
        if not done:
            raise ClusterUnreachable(self._unreachable_text(f"no answer within {self._connect_s:g} s"))
        if not self._is_connected():
            raise ClusterUnreachable(self._failed[1] if self._failed else self._unreachable_text("it has ended"))

    def _is_connected(self) -> bool:
        is_bridge_alive = self._bridge is not None and self._bridge.process.poll() is None
        return is_bridge_alive and (self._head is None or self._head.is_alive())

    async def _establish(self) -> None:
        """Connect once; a failure is kept for the callers."""
        try:
            await self._end_process()
            if self._head is not None:
                await asyncio.to_thread(self._head.start, timeout_s=_HEAD_S)
                self._connection = replace(self._connection, address=self._head.address)
            await self._start_process()
        except (ClusterUnreachable, HeadFailed, OSError) as error:
            has_reason = isinstance(error, ClusterUnreachable | HeadFailed)
            why = str(error) if has_reason else self._unreachable_text(str(error))
            self._failed = (time.monotonic(), why)
            get_logger().warning("cluster.away", address=self._connection.address, message=why)
        else:
            self._failed = None
            get_logger().info("cluster.connected", address=self._connection.address)
        finally:
            self._connecting = None

    def _unreachable_text(self, why: str) -> str:
        return f"The Ray cluster {self._connection.address} cannot be reached: {why}. Ray's output is in {self._log}."

    async def _start_process(self) -> None:
        bridge = await self._spawn()
        why = "it ended at once"
        try:
            async with asyncio.timeout(_GIVE_UP_S):
                bridge.writer.write(msgspec.json.encode(self._connection) + b"\n")
                line = await bridge.reader.readline()
                if line:
                    why = msgspec.json.decode(line, type=BridgeReply).message
        except (TimeoutError, OSError) as error:
            line, why = b"", str(error) or f"no answer within {_GIVE_UP_S:g} s"
        except BaseException:
            await bridge.end()
            raise
        if not line or why:
            await bridge.end()
            raise ClusterUnreachable(self._unreachable_text(why))
        self._bridge = bridge
        self._reader = asyncio.create_task(self._read(bridge), name="ray-link")

    async def _spawn(self) -> _BridgeProcess:
        """
        Start the bridge process with a socket as its stdin and stdout.

        NOTE: not by `asyncio.create_subprocess_exec`, because uvloop forks and runs Python in the child before it
        executes the command, while the event loop waits: a lock that another thread held at the fork stops both for
        good. `Popen` runs no Python in the child.
        """
        own, other = socket.socketpair()
        with other:
            spawning = asyncio.create_task(asyncio.to_thread(self._popen, other))
            try:
                process = await asyncio.shield(spawning)
            except asyncio.CancelledError:
                own.close()  # the bridge ends when its stdin does
                await asyncio.to_thread((await spawning).wait)
                raise
            except BaseException:
                own.close()
                raise
        reader, writer = await asyncio.open_connection(sock=own, limit=_LINE_BYTES)
        return _BridgeProcess(process=process, reader=reader, writer=writer)

    def _popen(self, stream: socket.socket) -> "subprocess.Popen[bytes]":
        if self._head is not None:  # the user's variables for Ray are about other clusters
            own = {name: value for name, value in self._environment.items() if not name.startswith("RAY_")}
            environment = {**own, **QUIET, **ON_LOOPBACK, **self._head.access}
        else:
            is_here = self._connection.address.removeprefix("ray://").startswith(("127.", "localhost:"))
            environment = {**self._environment, **QUIET, **(ON_LOOPBACK if is_here else {})}
        with self._log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 -- a fixed command
                _COMMAND,
                stdin=stream.fileno(),
                stdout=stream.fileno(),
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C must not end the bridge: the platform stops its workers through it
            )

    async def _read(self, bridge: _BridgeProcess) -> None:
        """Hand replies to their calls until the bridge ends; then fail the calls that are open, and reap it."""
        try:
            while line := await bridge.reader.readline():
                reply = msgspec.json.decode(line, type=BridgeReply)
                waiting = self._waiting.get(reply.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
        finally:
            self._bridge = None
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ClusterUnreachable("The connection to Ray has ended."))
            await bridge.end()
