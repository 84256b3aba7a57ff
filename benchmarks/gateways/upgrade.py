"""
Upgrade two platforms on one PostgreSQL behind HAProxy, one after the other, under load.

    python -m benchmarks.gateways.upgrade

A platform gets SIGTERM and nothing else; HAProxy moves the traffic by its health checks. Writes `--output` (JSON) and
the same name with `.md`. HAProxy: `apt-get install haproxy`.
"""

import asyncio
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import uvloop
from benchmarks.gateways import pages
from benchmarks.gateways.failover import stream
from benchmarks.gateways.load import GATEWAY_PATH
from benchmarks.gateways.setups import new_pair
from benchmarks.harness.platforms import Platform, until
from benchmarks.harness.results import RESULTS, make_parser, tell, write_result

from headrace.tools.bench.environment import describe_environment
from headrace.tools.bench.http1 import ConnectionFailed, HttpClient, Truncated

_STREAMS: Final = 8
_SHORT: Final = 8
_DELAY_S: Final = 3
"""`shutdown_delay_s` of the platforms."""
_CHECK_MS: Final = 500
"""Time between two health checks; two that fail take a platform out."""


class HAProxy:
    """A load balancer in front of ports, which asks each of them for its health."""

    def __init__(self, program: str, folder: Path, port: int, ports: Sequence[int]) -> None:
        self.port = port
        servers = "\n".join(f"  server s{index} 127.0.0.1:{port}" for index, port in enumerate(ports))
        file = folder / "haproxy.cfg"
        file.write_text(
            f"""defaults
  mode http
  retries 3
  option redispatch
  timeout connect 2s
  timeout client 60s
  timeout server 60s
frontend all
  bind 127.0.0.1:{port}
  default_backend platforms
backend platforms
  option httpchk GET /health
  default-server check inter {_CHECK_MS}ms fall 2 rise 1
{servers}
"""
        )
        self._process = subprocess.Popen([program, "-db", "-q", "-f", str(file)])
        until(self._is_listening, "HAProxy listens")

    def _is_listening(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


async def ask(client: HttpClient, is_over: asyncio.Event, failures: list[str]) -> int:
    """Send short requests until it is over; return their number."""
    number = 0
    while not is_over.is_set():
        try:
            exchange = await client.fetch("POST", GATEWAY_PATH, b"{}")
            if exchange.status != 200:
                failures.append(f"{exchange.status}: {exchange.content()[:200]!r}")
        except (ConnectionFailed, Truncated, TimeoutError) as error:
            failures.append(repr(error))
        number += 1
        await asyncio.sleep(0.005)
    return number


async def keep_streaming(client: HttpClient, index: int, is_over: asyncio.Event, failures: list[str]) -> int:
    """Stream until it is over; return the number of streams."""
    number = 0
    while not is_over.is_set():
        is_equal, _ = await stream(client, 1000 * index + number)
        if not is_equal:
            failures.append("a stream broke or was another")
        number += 1
    return number


async def upgrade(platforms: Sequence[Platform], balancer: HAProxy) -> dict[str, Any]:
    """Replace both platforms, one after the other, under load."""
    client, is_over = HttpClient(f"http://127.0.0.1:{balancer.port}"), asyncio.Event()
    failures: list[str] = []
    loads = [asyncio.create_task(ask(client, is_over, failures)) for _ in range(_SHORT)]
    streams = [asyncio.create_task(keep_streaming(client, i, is_over, failures)) for i in range(_STREAMS)]
    await asyncio.sleep(1.0)
    for platform in platforms:
        await asyncio.to_thread(replace, platform)
        await asyncio.sleep(_CHECK_MS / 1000 + 1.0)  # HAProxy must see it before the next one goes
    is_over.set()
    num_requests, num_streams = sum(await asyncio.gather(*loads)), sum(await asyncio.gather(*streams))
    await client.close()
    return {
        "requests": num_requests,
        "streams": num_streams,
        "failed": len(failures),
        "failures": failures[:20],
    }


def replace(platform: Platform) -> None:
    platform.stop()
    platform.start_and_wait()


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--haproxy", default=shutil.which("haproxy") or "haproxy", help="the program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", default="", help="a remark for the results, such as: other work ran")
    parser.add_argument("--output", type=Path, default=RESULTS / "upgrade.json")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="upgrade-")))
        pair, ports = new_pair(folder, stack, "--shutdown-delay-s", str(_DELAY_S))
        balancer = HAProxy(options.haproxy, folder, next(ports), [platform.port for platform in pair])
        stack.callback(balancer.close)
        for _ in range(options.rounds):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                rows.append(runner.run(upgrade(pair, balancer)))
            tell(str(rows[-1]))
    result = {"environment": describe_environment(), "note": options.note, "shutdown_delay_s": _DELAY_S, "rounds": rows}
    page = "\n".join(pages.upgrade(result))
    write_result(options.output, result, f"# Rolling upgrade behind HAProxy\n{page}")
    print(page)


if __name__ == "__main__":
    main()
