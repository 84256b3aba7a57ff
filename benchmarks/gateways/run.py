"""
Measure requests a second and added latency with 1, 2 and 4 gateway processes, and with 1 and 2 platforms.

    python -m benchmarks.gateways.run
    python -m benchmarks.gateways.run --setups "1 process,4 processes" --rounds 2

All setups run at the same time and are measured in turns. Writes `--output` (JSON) and the same name with `.md`.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gateways.figures import Busy, Paced, summary, table
from benchmarks.gateways.load import GATEWAY_PATH, STREAM_PATH
from benchmarks.gateways.setups import KINDS, Setup, start
from benchmarks.harness.proc import cpu_s
from benchmarks.harness.results import RESULTS, make_parser, names, tell, write_result

from headrace.tools.bench.environment import describe_environment

PIECES, GAP_MS = 128, 2.0
WARM_S = 0.5


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--setups", default=",".join(KINDS).replace(", ", "; "), help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each cell")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument(
        "--rate", type=float, default=400.0, help="requests a second for the latency, half of them direct"
    )
    parser.add_argument("--note", default="", help="a remark for the results, such as: other work ran")
    parser.add_argument("--output", type=Path, default=RESULTS / "gateways.json")
    return parser.parse_args()


class Bench:
    """Runs the cells and keeps their results."""

    def __init__(self, options: Namespace, setups: Sequence[Setup]) -> None:
        self._options = options
        self._setups = setups
        self._cores = sorted(os.sched_getaffinity(0))
        self.busy: list[Busy] = []
        self.paced: list[Paced] = []

    def run(self) -> None:
        """Run all rounds; the order of the setups changes from round to round."""
        rng = random.Random(0)
        for number in range(self._options.rounds):
            order = rng.sample(self._setups, len(self._setups))
            for is_pinned in (False, True):
                for setup in order:
                    self._measure(setup, is_pinned=is_pinned)
                    tell(f"round {number + 1}: {setup.name}, pinned: {is_pinned}")

    def _measure(self, setup: Setup, *, is_pinned: bool) -> None:
        rest = self._cores[:1] if is_pinned else self._cores
        setup.pin(self._cores[1:] if is_pinned else self._cores, rest)
        for load, path in (("requests", GATEWAY_PATH), ("streams", STREAM_PATH)):
            found = self._load(setup, rest, load=load, path=path, pieces=PIECES, gap_ms=GAP_MS)
            self.busy.append(Busy(setup=setup.name, load=load, is_pinned=is_pinned, **found))
        found = self._load(setup, rest, load="paced", rate=self._options.rate, worker_port=setup.worker_port)
        self.paced.append(
            Paced(setup=setup.name, is_pinned=is_pinned, direct=tuple(found["direct"]), through=tuple(found["through"]))
        )

    def _load(self, setup: Setup, cores: Sequence[int], **asked: Any) -> dict[str, Any]:
        """Run a load in a process of its own; add the CPU times of gateways and worker in its measured time."""
        options = self._options
        common = {"ports": setup.ports, "connections": options.connections, "seconds": options.seconds}
        text = json.dumps({**common, "warm_s": WARM_S, "cores": list(cores), **asked})
        command = [sys.executable, "-m", "benchmarks.gateways.load", text]
        times = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            for word in ("begin", "end"):
                if client.stdout.readline().strip() != word:
                    raise RuntimeError(f"The load {asked['load']} on {setup.name} failed; its error is above.")
                times.append((cpu_s(setup.gateway_pids()), cpu_s([setup.worker_pid])))
            found: dict[str, Any] = json.loads(client.stdout.readline())
        (gateway_0, worker_0), (gateway_1, worker_1) = times
        if asked["load"] != "paced":
            found |= {"gateway_cpu_s": gateway_1 - gateway_0, "worker_cpu_s": worker_1 - worker_0}
        return found


def main() -> None:
    options = parse_arguments()
    setups = [name.replace("; ", ", ") for name in names(options.setups)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateways-")))
        folder.chmod(0o755)  # PostgreSQL runs as a user of its own
        bench = Bench(options, start(setups, folder, stack))
        bench.run()
    rows = summary(bench.busy, bench.paced)
    num_cores = len(os.sched_getaffinity(0))
    text = table(rows, num_cores=num_cores)
    result = {
        "environment": describe_environment(),
        "options": {key: value for key, value in vars(options).items() if key != "output"},
        "note": options.note,
        "num_cores": num_cores,
        "pieces": PIECES,
        "gap_ms": GAP_MS,
        "summary": rows,
        "busy": [asdict(cell) for cell in bench.busy],
        "paced": [
            {"setup": c.setup, "is_pinned": c.is_pinned, "direct": len(c.direct), "through": len(c.through)}
            | {f"{way}_ms": [round(1e3 * v, 3) for v in sorted(getattr(c, way))[::20]] for way in ("direct", "through")}
            for c in bench.paced
        ],
    }
    write_result(options.output, result, f"# Several gateways\n\n{text}")
    print(text)


if __name__ == "__main__":
    main()
