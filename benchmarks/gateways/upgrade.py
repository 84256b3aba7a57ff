"""
Upgrade two platforms on one PostgreSQL behind nginx, one after the other, under load.

    python -m benchmarks.gateways.upgrade

Two ways are tried: `plain` only stops a platform (SIGTERM); `marked` marks it as down in nginx's configuration before,
and reloads nginx. Writes `--output` (JSON) and the same name with `.md`. nginx: `apt-get install nginx-light`.
"""

import argparse
import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import uvloop
from benchmarks.chaos.processes import Platform, PostgreSQL, until
from benchmarks.gateways.failover import start, stream
from benchmarks.gateways.load import GATEWAY_PATH
from benchmarks.gateways.setups import create_endpoint, new_platform

from headrace.bench.environment import describe_environment
from headrace.bench.http1 import ConnectionFailed, HttpClient, Truncated
from headrace.cluster.ports import PLATFORM_PORTS, free_ports

RESULT: Final = Path(__file__).parents[1] / "results" / "upgrade.json"
_STREAMS: Final = 8
_SHORT: Final = 8
_DELAY_S: Final = 3
"""`shutdown_delay_s` of the platforms."""


class Nginx:
    """A load balancer in front of ports."""

    def __init__(self, program: str, folder: Path, port: int, ports: Sequence[int]) -> None:
        self.port = port
        self._ports = ports
        self._folder = folder
        self._command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors.log")]
        self._configure(down=None)
        subprocess.run([*self._command, "-t", "-q"], check=True)
        self._process = subprocess.Popen(self._command)
        until(self._is_listening, "nginx listens")

    def _is_listening(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False

    def mark(self, down: int | None) -> None:
        """Send no new requests to a port; None: send them to all."""
        self._configure(down=down)
        subprocess.run([*self._command, "-s", "reload"], check=True)

    def _configure(self, *, down: int | None) -> None:
        servers = "\n".join(
            f"    server 127.0.0.1:{port} max_fails=1 fail_timeout=2s{' down' if port == down else ''};"
            for port in self._ports
        )
        temporary = "\n".join(
            f"  {name}_temp_path {self._folder}/{name};"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (self._folder / "nginx.conf").write_text(
            f"""daemon off;
pid {self._folder}/nginx.pid;
worker_processes 1;
events {{ worker_connections 1024; }}
http {{
  access_log off;
{temporary}
  upstream headrace {{
{servers}
  }}
  server {{
    listen 127.0.0.1:{self.port};
    location / {{
      proxy_pass http://headrace;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host localhost;
      proxy_buffering off;
      proxy_next_upstream error timeout;
    }}
  }}
}}
"""
        )

    def close(self) -> None:
        """Stop it."""
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


async def upgrade(platforms: Sequence[Platform], nginx: Nginx, *, is_marked: bool) -> dict[str, Any]:
    """Replace both platforms, one after the other, under load."""
    client, is_over = HttpClient(f"http://127.0.0.1:{nginx.port}"), asyncio.Event()
    failures: list[str] = []
    loads = [asyncio.create_task(ask(client, is_over, failures)) for _ in range(_SHORT)]
    streams = [asyncio.create_task(keep_streaming(client, i, is_over, failures)) for i in range(_STREAMS)]
    await asyncio.sleep(1.0)
    for platform in platforms:
        await asyncio.to_thread(replace, platform, nginx, is_marked)
        await asyncio.sleep(1.0)
    is_over.set()
    num_requests, num_streams = sum(await asyncio.gather(*loads)), sum(await asyncio.gather(*streams))
    await client.close()
    return {
        "way": "marked" if is_marked else "plain",
        "requests": num_requests,
        "streams": num_streams,
        "failed": len(failures),
        "failures": failures[:20],
    }


def replace(platform: Platform, nginx: Nginx, is_marked: bool) -> None:
    """Stop a platform and start the next one in its place."""
    if is_marked:
        nginx.mark(platform.port)
        time.sleep(0.5)  # nginx starts new processes for the new configuration
    process = platform.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    until(lambda: platform.exit_code is not None, "the platform has ended")
    start(platform)
    if is_marked:
        nginx.mark(None)


def main() -> None:
    """Upgrade both ways, write the files, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nginx", default=shutil.which("nginx") or "nginx", help="the program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", default="", help="a remark for the results, such as: other work ran")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="upgrade-")))
        folder.chmod(0o755)  # PostgreSQL runs as a user of its own
        ports = free_ports(PLATFORM_PORTS)
        database = PostgreSQL(folder / "postgresql", next(ports))
        stack.callback(database.close)
        flags = ["--database", database.create("pair"), "--shutdown-delay-s", str(_DELAY_S)]
        platforms = [new_platform(folder, number, next(ports), flags) for number in range(2)]
        for platform in platforms:
            stack.callback(platform.stop)
            start(platform)
        create_endpoint([platform.port for platform in platforms])
        nginx = Nginx(options.nginx, folder, next(ports), [platform.port for platform in platforms])
        stack.callback(nginx.close)
        for _ in range(options.rounds):
            for is_marked in (False, True):
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    rows.append(runner.run(upgrade(platforms, nginx, is_marked=is_marked)))
                print(rows[-1], file=sys.stderr, flush=True)
    result = {"environment": describe_environment(), "note": options.note, "shutdown_delay_s": _DELAY_S, "rounds": rows}
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    options.output.with_suffix(".md").write_text(f"# Rolling upgrade behind nginx\n\n{table(rows)}", encoding="utf-8")
    print(table(rows))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the sums of all rounds, as a Markdown table."""
    lines = ["| way | upgrades | requests | streams | failed |", "|---|---:|---:|---:|---:|"]
    for way in ("plain", "marked"):
        own = [row for row in rows if row["way"] == way]
        sums = " | ".join(f"{sum(row[name] for row in own):,}" for name in ("requests", "streams", "failed"))
        lines.append(f"| {way} | {2 * len(own)} | {sums} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
