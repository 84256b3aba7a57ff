"""
Measure the longest gap between two tokens of other clients' streams while a server or a platform is attacked.

    python -m benchmarks.attack.run "$(headrace models path smollm2)"
    python -m benchmarks.attack.run MODEL --target platform --only "AWS"
    python -m benchmarks.attack.run MODEL --target keyed --only "without a key" --streams 8
    python -m benchmarks.attack.run MODEL --target code --only "form of a handler" --streams 8
    python -m benchmarks.attack.run MODEL --only tokenize,lists --seconds 5

It attacks only the server that it starts itself, on a loopback address. The last line is one JSON object.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

from benchmarks.attack.attacks import ATTACKS, head
from benchmarks.attack.targets import NAMES, START_TIMEOUT_S, Target, clear, launch_of, make_target, prepare
from benchmarks.attack.watched import STACKS, holds_ms
from benchmarks.harness import results
from benchmarks.harness.proc import session_use
from benchmarks.harness.servers import HOST, ServerFailed, ServerProcess

from headrace.tools.bench.environment import describe_environment

GOAL_MS = 100.0
MIB = 1024 * 1024
_STREAM = json.dumps(
    {"model": "model", "prompt": "Tell me a long story.", "max_tokens": 400, "ignore_eos": True, "stream": True}
).encode()
_SMALL = json.dumps({"model": "model", "prompt": "Hello", "max_tokens": 1}).encode()


@dataclass(kw_only=True)
class Measured:
    """The measurements of the other clients during one attack."""

    name: str
    num_attacks: int = 0
    first_answer: str = ""
    begun_s: float = 0.0
    """When the attack began, by the clock of the stalls (`perf_counter`)."""
    longest_gap_ms: float = 0.0
    longest_hold_ms: float = 0.0
    """The longest time that the event loop stood still, without its waits for a CPU."""
    gaps_over_goal: int = 0
    num_events: int = 0
    slowest_small_request_ms: float = 0.0
    refused: int = 0
    """Requests of other clients that were not answered 200."""
    rss_before_mib: float = 0.0
    rss_after_mib: float = 0.0
    rss_peak_mib: float = 0.0
    """The most that was measured during the attack, every quarter of a second."""
    gaps_ms: list[float] = field(default_factory=list, repr=False)


async def ask(target: Target, port: int, content: bytes, seen: Measured, *, is_stream: bool) -> None:
    """Send one request of another client; note the gaps between the pieces of a stream."""
    started_s = perf_counter()
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(head(target.path, len(content), "Connection: close\r\n" + target.headers) + content)
        status = await reader.readline()
        if b" 200 " not in status:
            seen.refused += 1
            await asyncio.sleep(0.1)
            return
        last_s: float | None = None
        while line := await reader.readline():
            if is_stream and line.startswith(b"data: {"):
                now_s = perf_counter()
                if last_s is not None:
                    seen.gaps_ms.append((now_s - last_s) * 1e3)
                last_s = now_s
        if not is_stream:
            seen.slowest_small_request_ms = max(seen.slowest_small_request_ms, (perf_counter() - started_s) * 1e3)
    finally:
        writer.close()


async def until_it_streams(target: Target, port: int) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            seen = Measured(name="")
            with suppress(OSError):
                await ask(target, port, _STREAM, seen, is_stream=True)
            if seen.gaps_ms:
                return
            await asyncio.sleep(0.1)


async def watch_memory(server: ServerProcess, seen: Measured) -> None:
    """Note the most resident memory, until cancelled."""
    while True:
        rss_bytes = (await asyncio.to_thread(session_use, server.session)).rss_bytes
        seen.rss_peak_mib = max(seen.rss_peak_mib, round(rss_bytes / MIB))
        await asyncio.sleep(0.25)


async def others(target: Target, port: int, seen: Measured, num_streams: int) -> None:
    """Run streams one after the other, and a small request every second, until cancelled."""

    async def stream() -> None:
        while True:
            with suppress(OSError):
                await ask(target, port, _STREAM, seen, is_stream=True)

    async def small() -> None:
        while True:
            with suppress(OSError):
                await ask(target, port, _SMALL, seen, is_stream=False)
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(num_streams):
            tasks.create_task(stream())
        tasks.create_task(small())


async def measure(name: str, target: Target, server: ServerProcess, options: Namespace) -> Measured:
    """Measure the other clients during an attack and for two seconds after it."""
    seen = Measured(name=name, rss_before_mib=round(session_use(server.session).rss_bytes / MIB))
    asking = asyncio.create_task(others(target, server.port, seen, options.streams))
    watching = asyncio.create_task(watch_memory(server, seen))
    await asyncio.sleep(1)
    seen.gaps_ms.clear()
    seen.begun_s = round(perf_counter(), 3)
    attack_command = [sys.executable, "-m", "benchmarks.attack.attacks", name, str(server.port), str(options.seconds)]
    # The lowest priority: real attackers spend the CPU time of other machines.
    command = ["nice", "-n", "19", *attack_command]
    attack = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    told, said = await attack.communicate()
    await asyncio.sleep(2)
    asking.cancel()
    watching.cancel()
    await asyncio.wait({asking, watching})
    seen.num_attacks = json.loads(told or b'{"count": 0}')["count"]
    seen.first_answer = said.decode().partition("\n")[0].removeprefix("HTTP/1.1 ")
    seen.num_events = len(seen.gaps_ms)
    seen.longest_gap_ms = round(max(seen.gaps_ms, default=0.0), 1)
    seen.longest_hold_ms = max(holds_ms(options.stalls, seen.begun_s), default=0.0)
    seen.gaps_over_goal = sum(gap > GOAL_MS for gap in seen.gaps_ms)
    seen.slowest_small_request_ms = round(seen.slowest_small_request_ms, 1)
    seen.rss_after_mib = round(session_use(server.session).rss_bytes / MIB)
    return seen


def table(rows: list[Measured]) -> str:
    header = ["attack", "times", "answer", "gap, ms", "loop held, ms", "gaps > 100 ms", "small, ms", "refused"]
    cells = (
        (
            *(row.name, row.num_attacks, row.first_answer, f"{row.longest_gap_ms:.0f}", f"{row.longest_hold_ms:.0f}"),
            *(row.gaps_over_goal, f"{row.slowest_small_request_ms:.0f}", row.refused),
            *(f"{row.rss_before_mib:.0f} → {row.rss_after_mib:.0f}", f"{row.rss_peak_mib:.0f}"),
        )
        for row in rows
    )
    return results.table([*header, "RSS, MiB", "peak"], cells)


def store(rows: list[Measured], path: Path) -> None:
    """Write results to a file, in place of earlier ones of the same attacks."""
    found = json.loads(path.read_text())["attacks"] if path.exists() else []
    attacks = {row["name"]: row for row in found}
    for row in rows:
        attacks[row.name] = {key: value for key, value in asdict(row).items() if key != "gaps_ms"}
    ordered = [attacks[name] for name in ATTACKS if name in attacks]
    result = {"environment": describe_environment(), "load": os.getloadavg()[0], "attacks": ordered}
    results.write_result(path, result)


def parse_arguments() -> Namespace:
    parser = results.make_parser(__doc__)
    parser.add_argument("model", help="a file, a folder or an alias")
    parser.add_argument("--target", choices=NAMES, default="server", help="what is attacked")
    parser.add_argument("--streams", type=int, default=4, help="of the others")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each attack")
    parser.add_argument("--only", type=results.names, default=[], help="parts of attacks' names, separated by commas")
    parser.add_argument("--stalls", type=Path, help="file for the event loop's stalls, with the stacks of all threads")
    parser.add_argument("--output", type=Path, help="JSON file for the results; others in it are kept")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    names = [name for name in ATTACKS if not options.only or any(part in name for part in options.only)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        if options.stalls:
            os.environ[STACKS] = "1"
        options.stalls = options.stalls or Path(folder) / "stalls.txt"
        target = make_target(options.target, options.model, Path(folder))
        log = Path(folder) / "server.log"
        with ServerProcess(launch_of(target, stalls=options.stalls), log=log) as server:
            try:
                prepare(target, server)
                asyncio.run(until_it_streams(target, server.port))
                for name in names:
                    rows.append(asyncio.run(measure(name, target, server, options)))
                    results.tell(table(rows[-1:]).splitlines()[-1])
            except TimeoutError:
                raise ServerFailed(f"No stream within {START_TIMEOUT_S:.0f} s:\n{log.read_text()[-2000:]}") from None
            finally:
                clear(target, server)
    if options.output:
        store(rows, options.output)
    print(table(rows))
    print(json.dumps({"longest_gap_ms": max(row.longest_gap_ms for row in rows), "attacks": len(rows)}))


if __name__ == "__main__":
    main()
