"""
The load of a cell, in a process of its own: `python -m benchmarks.gateways.load JSON` prints its result as JSON.

`requests` and `streams` keep a number of connections busy; `paced` sends short requests at a rate, in turns to the
worker and through the gateways, so that both meet the same moments of the machine.
"""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any

import uvloop

ENDPOINT = "bench"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_INPUT = json.dumps({"inputs": "Why is the sky blue?", "parameters": {"max_new_tokens": 128}}).encode()
WORKER_PATH, GATEWAY_PATH = "/invocations", f"/endpoints/{ENDPOINT}/invocations"
STREAM_PATH = f"{GATEWAY_PATH}-response-stream"
OPENAI_PATH = f"/endpoints/{ENDPOINT}/openai/v1/completions"
TIMEOUT_S = 30.0
PIECE_MARK = b"data: "


class Connection(asyncio.Protocol):
    """A keep-alive connection that reads as little of its answers as their end needs."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._received = b""
        self._answer: asyncio.Future[None] | None = None
        self.num_pieces = 0
        """Of streams, since the connection was made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the connection closed ({exc or 'end of file'})"))

    async def send(self, request: bytes) -> None:
        """Send a request and wait for the end of its answer; the status has to be 200."""
        self._answer = asyncio.get_running_loop().create_future()
        self._received = b""
        self.transport.write(request)
        await self._answer

    def data_received(self, data: bytes) -> None:
        assert self._answer is not None
        if self._answer.done():
            return
        is_begun = bool(self._received)
        received = self._received = data if not is_begun else self._received + data
        if not received.startswith(b"HTTP/1.1 200"):
            self._answer.set_exception(RuntimeError(f"expected status 200: {received[:300]!r}"))
            return
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return
        if found := _LENGTH.search(received, 0, end):
            if len(received) >= end + 4 + int(found[1]):
                self._answer.set_result(None)
            return
        self.num_pieces += data.count(PIECE_MARK)
        # A stream: keep its head as a mark, and the last bytes, where its end would be.
        if received.endswith(b"0\r\n\r\n"):
            self._answer.set_result(None)
        else:
            self._received = received[: end + 4] + received[-4:]


def request(path: str, body: bytes = _INPUT) -> bytes:
    lines = (
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


async def connections(ports: Sequence[int], number: int) -> list[Connection]:
    """Open connections, in turns to the ports."""
    loop = asyncio.get_running_loop()
    opened = [loop.create_connection(Connection, "127.0.0.1", ports[index % len(ports)]) for index in range(number)]
    return [connection for _, connection in await asyncio.gather(*opened)]


async def busy(asked: dict[str, Any], made: Callable[[int], bytes]) -> dict[str, Any]:
    """Keep all connections busy with requests; count what ends within the measured time."""
    opened = await connections(asked["ports"], asked["connections"])
    warm_until_s = perf_counter() + asked["warm_s"]
    end_s = warm_until_s + asked["seconds"]
    num_answers = num_before = 0

    async def repeat(index: int, connection: Connection) -> None:
        nonlocal num_answers
        sent = made(index)
        while perf_counter() < end_s:
            await connection.send(sent)
            if warm_until_s <= perf_counter() < end_s:
                num_answers += 1

    def pieces() -> int:
        return sum(connection.num_pieces for connection in opened)

    async def watch() -> tuple[int, float, float]:
        await asyncio.sleep(asked["warm_s"])
        nonlocal num_before
        num_before = pieces()
        say("begin")
        began_s, began_cpu_s = perf_counter(), time.process_time()
        await asyncio.sleep(asked["seconds"])
        say("end")
        return pieces() - num_before, perf_counter() - began_s, time.process_time() - began_cpu_s

    watched = asyncio.create_task(watch())
    await asyncio.gather(*(repeat(index, connection) for index, connection in enumerate(opened)))
    num_pieces, seconds, cpu_s = await watched
    return {"answers": num_answers, "pieces": num_pieces, "seconds": seconds, "client_cpu_s": cpu_s}


async def paced(asked: dict[str, Any]) -> dict[str, Any]:
    """Send at a rate, to the worker and through the gateways in turns; return the latencies, seconds."""
    ways = {
        "direct": ([asked["worker_port"]], request(WORKER_PATH)),
        "through": (asked["ports"], request(GATEWAY_PATH)),
    }
    pools: dict[str, asyncio.Queue[Connection]] = {}
    for name, (ports, _) in ways.items():
        pools[name] = asyncio.Queue()
        for connection in await connections(ports, asked["connections"]):
            pools[name].put_nowait(connection)
    latencies: dict[str, list[float]] = {name: [] for name in pools}
    total = int(asked["rate"] * (asked["seconds"] + asked["warm_s"]))
    num_warm = int(asked["rate"] * asked["warm_s"])
    begun_s = perf_counter()
    sending: set[asyncio.Task[None]] = set()

    async def send_one(name: str, is_warm: bool) -> None:
        before_s = perf_counter()
        connection = await pools[name].get()  # the oldest: all processes get their share
        await connection.send(ways[name][1])
        if not is_warm:
            latencies[name].append(perf_counter() - before_s)
        pools[name].put_nowait(connection)

    say("begin")
    for number in range(total):
        if (pause_s := begun_s + number / asked["rate"] - perf_counter()) > 0:
            await asyncio.sleep(pause_s)
        task = asyncio.create_task(send_one("through" if number % 2 else "direct", number < num_warm))
        sending.add(task)
        task.add_done_callback(sending.discard)
        if number % 64 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*sending)
    say("end")
    return latencies


def say(word: str) -> None:
    """Tell the parent that the measured time begins or ends, for the CPU times of other processes."""
    print(word, flush=True)


def stream_request(path: str, pieces: int, gap_ms: float, index: int) -> bytes:
    body = {"id": f"r{index}", "pieces": pieces, "gap_ms": gap_ms, "stream": True, "model": "m", "prompt": "p"}
    return request(path, json.dumps(body).encode())


async def run(asked: dict[str, Any]) -> dict[str, Any]:
    loads: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "requests": lambda: busy(asked, lambda _: request(asked["path"])),
        "streams": lambda: busy(asked, lambda i: stream_request(asked["path"], asked["pieces"], asked["gap_ms"], i)),
        "paced": lambda: paced(asked),
    }
    async with asyncio.timeout(asked["seconds"] + asked["warm_s"] + TIMEOUT_S):
        return await loads[asked["load"]]()


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    if arguments.get("cores"):
        os.sched_setaffinity(0, arguments["cores"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(run(arguments))), flush=True)
