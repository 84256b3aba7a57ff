"""
Measure the cost of the sandbox of user code: of the start of a process, of its memory, and of a call.

  python -m benchmarks.handlers.sandbox [--turns 30]

Alternates children with and without it in one run and prints medians. A start lasts from the creation of the child
until its code is loaded; its CPU time, that of all its processes, says more on a machine that does other work, too. A
call sends 100 bytes to a handler that returns them.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from headrace.core.processes import memory_bytes, process_id
from headrace.core.telemetry import setup_logging
from headrace.serving.handlers.channel import new_tail
from headrace.serving.handlers.code_metrics import CodeMetrics
from headrace.serving.handlers.exchange import HandlerRequest, request_part
from headrace.serving.handlers.isolation import Isolation
from headrace.serving.handlers.pool import HandlerPool
from headrace.serving.handlers.process import ChildProcess
from headrace.serving.handlers.spec import HandlerSpec
from headrace_handler.contract import Load

CODE = """
def model_fn(folder):
    return None
def transform_fn(model, body, content_type, accept):
    return body, accept
"""
CALLS = 200
MIB = 1 << 20


def cpu_ms(pid: int) -> float:
    """Return the CPU time of a process and its descendants until now."""
    total_ms = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total_ms += int((task / "schedstat").read_text().split()[0]) / 1e6
        total_ms += sum(map(cpu_ms, map(int, (task / "children").read_text().split())))
    return total_ms


async def start_ms(spec: HandlerSpec) -> tuple[float, float, float]:
    """Return the milliseconds of a start, those of CPU time, and the MiB of the child's processes."""
    since_s = time.perf_counter()
    child = ChildProcess(spec, new_tail(), CodeMetrics())
    await child.load()
    passed_ms = (time.perf_counter() - since_s) * 1e3
    busy_ms = cpu_ms(child.pid)
    process = process_id(child.pid)
    assert process is not None
    size = memory_bytes(process) / MIB
    await child.kill()
    return passed_ms, busy_ms, size


async def call_us(spec: HandlerSpec) -> float:
    """Return the median of a call, in microseconds."""
    pool = HandlerPool(spec)
    await pool.start()
    times = []
    for _ in range(CALLS):
        since_s = time.perf_counter()
        request = HandlerRequest(request_id="r", path="/invocations", parts=[await request_part(bytes(100))])
        response = pool.submit(request)
        await response.head()
        times.append((time.perf_counter() - since_s) * 1e6)
    await pool.close(deadline_s=0)
    return statistics.median(times)


async def measure(folder: Path, turns: int) -> None:
    plain = HandlerSpec(contract="sagemaker", load=Load(model_name="m", model_dir=folder, entry="inference.py"))
    plain = replace(plain, environment={"PATH": "/usr/bin:/bin"})
    specs = {"without": plain, "with": Isolation(is_on=True).isolate(plain, folder)}
    starts: dict[str, list[float]] = {name: [] for name in specs}
    busy: dict[str, list[float]] = {name: [] for name in specs}
    sizes: dict[str, list[float]] = {name: [] for name in specs}
    calls: dict[str, list[float]] = {name: [] for name in specs}
    for _ in range(turns):
        for name, spec in specs.items():
            passed_ms, busy_ms, size = await start_ms(spec)
            starts[name].append(passed_ms)
            busy[name].append(busy_ms)
            sizes[name].append(size)
    for _ in range(max(3, turns // 6)):
        for name, spec in specs.items():
            calls[name].append(await call_us(spec))
    rows = (
        ("start, ms", starts),
        ("CPU time of the start, ms", busy),
        ("memory of its processes, MiB", sizes),
        ("call, us", calls),
    )
    print("| | without | with |\n|---|---|---|")
    for title, values in rows:
        print(f"| {title} | " + " | ".join(f"{statistics.median(values[name]):.1f}" for name in specs) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30)
    turns = parser.parse_args().turns
    setup_logging(level="error")
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "inference.py").write_text(CODE)
        asyncio.run(measure(Path(name), turns))


if __name__ == "__main__":
    main()
