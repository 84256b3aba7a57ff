"""Run cells against servers in turns: start them, freeze all but one, call the load tool, read /proc."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Self

from benchmarks.cpu_serving.cells import Cell, trace_lines
from benchmarks.cpu_serving.figures import WrongOutput, run_figures
from benchmarks.cpu_serving.load_tool import LoadTool, ToolFailed, ToolTask
from benchmarks.cpu_serving.servers import Row
from benchmarks.harness.machine import BandwidthProbe
from benchmarks.harness.proc import session_use
from benchmarks.harness.servers import Launch, ServerFailed, ServerProcess
from benchmarks.harness.turns import rotated
from benchmarks.peers.manifest import Manifest

_START_TIMEOUT_S = 400.0
_IDLE_S = 3.0
_DISTURBED_CORES = 0.2
"""Cores of other processes above which a run is repeated once."""
_MAX_ATTEMPTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Settings that all runs share."""

    manifest: Manifest
    threads: int
    seed: int
    scratch: Path
    tool: LoadTool
    probe: BandwidthProbe


class Fleet:
    """The started servers, all frozen but at most one; the end of a `with` block ends them."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._servers: dict[Launch, ServerProcess] = {}
        self.starts: list[dict[str, Any]] = []
        """Seconds to the first token, idle CPU and memory of every process that was started."""

    def ready(self, row: Row, cell: Cell) -> ServerProcess:
        """
        Return the row's server for a cell, thawed.

        Raises:
            ServerFailed: It did not start.
            KeyError: The peer is not installed.
        """
        launch = row.launch(cell, self._bench.manifest, self._bench.threads)
        server = self._servers.get(launch)
        if server is not None:
            server.thaw()
            return server
        number = len(self._servers)
        server = ServerProcess(launch, log=self._bench.scratch / f"{row.name}-{number}.log")
        self._servers[launch] = server
        start_s = server.wait_for_token(timeout_s=_START_TIMEOUT_S)
        facts: dict[str, Any] = {"start_s": start_s, "idle_cpu_share": server.idle_cpu_share(_IDLE_S)}
        facts |= session_use(server.session).memory
        self.starts.append({"row": row.name, "cell": cell.name, **facts, "launch": asdict(launch)})
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.close()


def run_rounds(
    bench: Bench, servers: Fleet, rows: Sequence[Row], cells: Sequence[Cell], *, rounds: int
) -> Iterator[dict[str, Any]]:
    """Yield one record per run. The order of the servers rotates from round to round."""
    for number in range(rounds):
        for cell, row in product(cells, rotated(rows, number)):
            if cell.kind not in row.kinds or number >= (row.max_rounds or rounds):
                continue
            facts = {"row": row.name, "cell": cell.name, "round": number}
            try:
                yield facts | run_once(bench, servers, row, cell, round_number=number)
            except (ServerFailed, ToolFailed, WrongOutput, KeyError) as error:
                yield facts | {"error": str(error)}


def run_once(bench: Bench, servers: Fleet, row: Row, cell: Cell, *, round_number: int) -> dict[str, Any]:
    """Run one cell on one server, again if other processes disturbed it; return the measurement."""
    server = servers.ready(row, cell)
    try:
        for attempt in range(_MAX_ATTEMPTS):
            gb_s = bench.probe.measure_gb_s()
            task = write_task(bench, server, cell, trace_number=round_number * _MAX_ATTEMPTS + attempt)
            figures = run_figures(cell, bench.tool.run(task, server_session=server.session))
            if figures["foreign_cores"] <= _DISTURBED_CORES:
                break
        memory = session_use(server.session).memory
    finally:
        server.freeze()
    return {"memory_gb_per_s": gb_s, "figures": figures, **memory}


def write_task(bench: Bench, server: ServerProcess, cell: Cell, *, trace_number: int) -> ToolTask:
    """Write the trace of one run and return the tool's task."""
    trace = bench.scratch / "trace.jsonl"
    trace.write_text("\n".join(trace_lines(cell, seed=bench.seed, number=trace_number)) + "\n")
    return ToolTask(cell=cell, url=server.url, tokenizer=bench.manifest.models["hf-bf16"], trace=trace)
