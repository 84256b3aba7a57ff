"""
Kill one of two platforms on one PostgreSQL under streams through the other, and report what these streams saw.

    python -m benchmarks.gateways.failover

Each round streams three times through the second platform: without a kill, while the first one leads and is killed,
and while the first one follows and is killed. Short requests go through the second platform all the time.
Writes `--output` (JSON) and the same name with `.md`.
"""

import asyncio
import json
import tempfile
import time
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Final

import uvloop
from benchmarks.gateways import pages
from benchmarks.gateways.figures import percentile
from benchmarks.gateways.load import ENDPOINT, GATEWAY_PATH, OPENAI_PATH
from benchmarks.gateways.setups import create_endpoint, new_pair
from benchmarks.gateways.worker import piece_of
from benchmarks.harness.platforms import Platform, until
from benchmarks.harness.results import RESULTS, make_parser, tell, write_result

from headrace.tools.bench.environment import describe_environment
from headrace.tools.bench.http1 import ConnectionFailed, HttpClient, Truncated

PIECES, GAP_MS = 300, 20.0
KILL_AFTER_S = 1.5
CASES: Final = ("none", "leader", "follower")
_SHORT_PAUSE_S = 0.02
_LEADS: Final = '"event": "platform.leads"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The view of the clients of the other platform."""

    killed: str
    """`none`, `leader` or `follower`"""
    streams: int
    equal: int
    """Streams with every byte that the worker sent, in order."""
    longest_gap_ms: float
    p50_gap_ms: float
    """Between the pieces of a stream."""
    requests: int
    """Short ones meanwhile."""
    failed_requests: int
    slowest_request_ms: float
    leads_after_s: float | None
    """From the kill until the other platform leads; None: it led already, or nothing was killed."""
    changes_after_s: float | None
    """From the kill until an endpoint that was created after it is in service."""


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--note", default="", help="a remark for the results, such as: other work ran")
    parser.add_argument("--output", type=Path, default=RESULTS / "failover.json")
    return parser.parse_args()


async def stream(client: HttpClient, number: int) -> tuple[bool, list[float]]:
    """Stream one answer; return whether it is equal to what the worker sends, and the gaps between pieces, seconds."""
    body = {"id": f"s{number}", "pieces": PIECES, "gap_ms": GAP_MS, "stream": True, "model": ENDPOINT, "prompt": "p"}
    try:
        exchange = await client.fetch("POST", OPENAI_PATH, json.dumps(body).encode())
    except (ConnectionFailed, Truncated, TimeoutError) as error:
        tell(f"stream {number}: {error!r}")
        return False, []
    expected = b"".join(piece_of(f"s{number}", piece) for piece in range(PIECES))
    times = [piece.at_s for piece in exchange.pieces]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return exchange.status == 200 and exchange.content() == expected, gaps


async def keep_asking(client: HttpClient, is_over: asyncio.Event) -> list[tuple[bool, float]]:
    """Send short requests until it is over; return whether each was answered, and its seconds."""
    answers = []
    while not is_over.is_set():
        began_s = perf_counter()
        try:
            is_answered = (await client.fetch("POST", GATEWAY_PATH, b"{}")).status == 200
        except (ConnectionFailed, Truncated, TimeoutError):
            is_answered = False
        answers.append((is_answered, perf_counter() - began_s))
        await asyncio.sleep(_SHORT_PAUSE_S)
    return answers


class Pair:
    """Two platforms; clients use the second one."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._platforms, _ = new_pair(folder, stack)
        self._num_made = 0

    @property
    def second(self) -> Platform:
        """The platform that serves the clients."""
        return self._platforms[1]

    def prepare(self, case: str) -> None:
        """Let both run, with the lease where the case needs it."""
        first, second = self._platforms
        if first.pid is None:
            first.start_and_wait()
        is_second_leading = self._leads(second)
        if (case == "leader") == is_second_leading:
            # The one that leads restarts, so that the other one leads.
            old, new = (second, first) if is_second_leading else (first, second)
            before = count(new)
            old.kill()
            until(lambda: count(new) > before, "the other platform leads")
            old.start_and_wait()

    def _leads(self, platform: Platform) -> bool:
        """Return whether a platform leads; the last one to say so does."""
        times = {other.name: last_time(other) for other in self._platforms}
        return max(times, key=lambda name: times[name]) == platform.name

    async def run(self, case: str, num_streams: int) -> Seen:
        """Stream through the second platform, and kill the first one meanwhile."""
        client = HttpClient(f"http://127.0.0.1:{self.second.port}")
        is_over = asyncio.Event()
        asking = asyncio.create_task(keep_asking(client, is_over))
        streams = [asyncio.create_task(stream(client, number)) for number in range(num_streams)]
        await asyncio.sleep(KILL_AFTER_S)
        leads_after_s = changes_after_s = None
        if case != "none":
            before, killed_s = count(self.second), time.monotonic()
            self._platforms[0].kill()
            if case == "leader":
                await asyncio.to_thread(until, lambda: count(self.second) > before, "the second platform leads")
                leads_after_s = time.monotonic() - killed_s
            self._num_made += 1
            await asyncio.to_thread(create_endpoint, [self.second.port], name=f"made-{self._num_made}")
            changes_after_s = time.monotonic() - killed_s
        found = await asyncio.gather(*streams)
        is_over.set()
        answers = await asking
        await client.close()
        gaps = [gap for _, own in found for gap in own]
        return Seen(
            killed=case,
            streams=num_streams,
            equal=sum(is_equal for is_equal, _ in found),
            longest_gap_ms=1e3 * max(gaps, default=0.0),
            p50_gap_ms=1e3 * percentile(gaps, 0.5),
            requests=len(answers),
            failed_requests=sum(not is_answered for is_answered, _ in answers),
            slowest_request_ms=1e3 * max(took_s for _, took_s in answers),
            leads_after_s=leads_after_s,
            changes_after_s=changes_after_s,
        )


def count(platform: Platform) -> int:
    """Return how often a platform has begun to lead."""
    return platform.log.read_text().count(_LEADS) if platform.log.exists() else 0


def last_time(platform: Platform) -> str:
    """Return when a platform began to lead last."""
    lines = [line for line in platform.log.read_text().splitlines() if _LEADS in line] if platform.log.exists() else []
    return str(json.loads(lines[-1])["timestamp"]) if lines else ""


def main() -> None:
    options = parse_arguments()
    seen: list[Seen] = []
    with ExitStack() as stack:
        pair = Pair(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="failover-"))), stack)
        for number in range(options.rounds):
            for case in CASES:
                pair.prepare(case)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    seen.append(runner.run(pair.run(case, options.streams)))
                tell(f"round {number + 1}: {seen[-1]}")
    result = {
        "environment": describe_environment(),
        "note": options.note,
        "pieces": PIECES,
        "gap_ms": GAP_MS,
        "rounds": [asdict(run) for run in seen],
    }
    page = "\n".join(pages.failover(result))
    write_result(options.output, result, f"# One of two platforms is killed\n{page}")
    print(page)


if __name__ == "__main__":
    main()
