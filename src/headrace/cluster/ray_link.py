"""The platform's end of its bridge to a Ray cluster: starts the process, asks it, starts another one if it ends."""

import asyncio
import itertools
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.cluster.launcher import InsufficientCapacity, LaunchFailed, StartPending
from headrace.cluster.ray_head import ON_LOOPBACK, QUIET, HeadFailed, RayHead
from headrace.cluster.ray_messages import GONE, INSUFFICIENT_CAPACITY, PENDING, REFUSED, Connection, Reply, Request
from headrace.core.telemetry import get_logger

_COMMAND: Final = (sys.executable, "-P", "-m", "headrace.cluster.ray_bridge")
CONNECT_S: Final = 25.0
"""Ray itself takes one to three of them where nothing is wrong."""
_PAUSE_S: Final = 2.0
"""Between two tries to reach a cluster."""
_LINE_BYTES: Final = 8 << 20
_HEAD_S: Final = 60.0
"""For a cluster that is started here."""


class ClusterAway(TimeoutError):
    """The cluster, or a worker's node, does not answer now; try again later."""


class WorkerGone(Exception):
    """The cluster has no such worker any more."""


class RayLink:
    """Questions to the cluster. At most one process at a time; it ends with this one, however that ends."""

    def __init__(
        self,
        connection: Connection,
        *,
        environment: Mapping[str, str],
        log: Path,
        connect_s: float = CONNECT_S,
        head: RayHead | None = None,
    ) -> None:
        """
        Prepare to connect; nothing is started yet.

        Args:
            connection: the cluster; with `head` its address is not read.
            environment: of this process.
            log: file for what Ray prints.
            connect_s: longest for the process to load Ray and to reach the cluster.
            head: a cluster on this machine that is started when it is needed and does not run.
        """
        self._connection = connection
        self._environment = environment
        self._log = log
        self._connect_s = connect_s
        self._head = head
        self._numbers = itertools.count(1)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._connecting = asyncio.Lock()
        self._failed: tuple[float, str] | None = None

    async def ask(self, method: str, timeout_s: float, **arguments: Any) -> Any:
        """
        Call a method of `ray_bridge.Bridge`.

        Raises:
            ClusterAway: no answer, now.
            StartPending: it is under way; ask again.
            WorkerGone: the worker that it is about has ended, with its actor or node.
            LaunchFailed: it cannot be done.
        """
        await self._connect()
        assert self._process is not None
        assert self._process.stdin is not None
        number = next(self._numbers)
        line = msgspec.json.encode(Request(number=number, name=method, arguments=arguments)) + b"\n"
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            async with asyncio.timeout(timeout_s):
                self._process.stdin.write(line)
                await self._process.stdin.drain()
                answer = await reply
        except TimeoutError:
            why = f"The Ray cluster {self._connection.address} did not answer in {timeout_s:g} s."
            raise ClusterAway(why) from None
        except OSError as error:
            raise ClusterAway(f"The connection to Ray has ended: {error}.") from error
        finally:
            self._waiting.pop(number, None)
        return self._result(answer)

    async def close(self) -> None:
        """End the process."""
        async with self._connecting:
            await self._let_go()

    async def _let_go(self) -> None:
        process, self._process = self._process, None
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if process is not None:
            await _end(process)

    def _result(self, answer: Reply) -> Any:
        if not answer.error:
            return answer.result
        if answer.error == GONE:
            raise WorkerGone(answer.message)
        if answer.error == PENDING:
            raise StartPending(answer.message)
        if answer.error == INSUFFICIENT_CAPACITY:
            raise InsufficientCapacity(answer.message)
        if answer.error == REFUSED:
            raise LaunchFailed(answer.message)
        raise ClusterAway(f"The Ray cluster {self._connection.address} does not answer: {answer.message}.")

    async def _connect(self) -> None:
        async with self._connecting:
            if self._process is not None and self._process.returncode is None:
                if self._head is None or self._head.is_alive():
                    return
                await self._let_go()
            if self._failed is not None and time.monotonic() - self._failed[0] < _PAUSE_S:
                raise ClusterAway(self._failed[1])
            try:
                if self._head is not None:
                    await self._start_head(self._head)
                await self._start_process()
            except ClusterAway as error:
                self._failed = (time.monotonic(), str(error))
                get_logger().warning("cluster.away", address=self._connection.address, message=str(error))
                raise
            get_logger().info("cluster.connected", address=self._connection.address)

    async def _start_head(self, head: RayHead) -> None:
        try:
            await asyncio.to_thread(head.start, patience_s=_HEAD_S)
        except HeadFailed as error:
            raise ClusterAway(str(error)) from error
        self._connection = replace(self._connection, address=head.address)

    async def _start_process(self) -> None:
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *_COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._bridge_environment(),
                start_new_session=True,  # Ctrl-C is for the platform, which still needs it to end its workers
                limit=_LINE_BYTES,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        why = "it ended at once"
        try:
            async with asyncio.timeout(self._connect_s):
                process.stdin.write(msgspec.json.encode(self._connection) + b"\n")
                line = await process.stdout.readline()
                if line:
                    why = msgspec.json.decode(line, type=Reply).message
        except (TimeoutError, OSError) as error:
            line, why = b"", str(error) or f"no answer in {self._connect_s:g} s"
        except BaseException:
            await _end(process)
            raise
        if not line or why:
            await _end(process)
            address = self._connection.address
            raise ClusterAway(f"The Ray cluster {address} cannot be reached: {why}. What Ray said is in {self._log}.")
        self._process = process
        self._reader = asyncio.create_task(self._read(process.stdout), name="ray-link")

    def _bridge_environment(self) -> dict[str, str]:
        if self._head is not None:  # what the user says of Ray is about other clusters
            own = {name: value for name, value in self._environment.items() if not name.startswith("RAY_")}
            return {**own, **QUIET, **ON_LOOPBACK, **self._head.access}
        is_here = self._connection.address.removeprefix("ray://").startswith(("127.", "localhost:"))
        return {**self._environment, **QUIET, **(ON_LOOPBACK if is_here else {})}

    async def _read(self, lines: asyncio.StreamReader) -> None:
        try:
            while line := await lines.readline():
                reply = msgspec.json.decode(line, type=Reply)
                waiting = self._waiting.get(reply.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
        finally:
            self._process_ended()

    def _process_ended(self) -> None:
        """Nobody waits for answers that cannot come."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ClusterAway("The connection to Ray has ended."))


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
