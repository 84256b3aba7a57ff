"""
Run a command and print the CPU seconds of every process below it, by kind of process and by test file.

  python scripts/process_costs.py scripts/test --all

`scripts/test_costs.py` attributes time to tests. This also counts what no test waits for: processes in sessions of
their own, and those that are killed. Orphans become children of this process, which waits for them, so the total is
exact, but for processes that still run at the end. The division is sampled: what ends between two samples is in "not
sampled".
"""

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.5
MOST = 50
PR_SET_CHILD_SUBREAPER = 36
SETTLED_S = 0.5
"""A process with more CPU time executes no other program any more."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Process:
    """A process that was seen, and its CPU time without that of its children."""

    kind: str
    file: str
    cpu_s: float = 0.0


class Sampler:
    """The processes below this one, by number and start, as numbers are used again."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, str], Process] = {}

    def run(self, ended: threading.Event) -> None:
        """Take samples until the event."""
        while not ended.wait(INTERVAL_S):
            self.sample()

    def sample(self) -> None:
        stats = {int(path.name): stat for path in Path("/proc").glob("[0-9]*") if (stat := read_stat(path))}
        children = defaultdict(list)
        for pid, stat in stats.items():
            children[int(stat[1])].append(pid)
        pending = [(pid, "") for pid in children[os.getpid()]]
        while pending:
            pid, file = pending.pop()
            stat = stats[pid]
            process = self.seen.get((pid, stat[19]))
            if process is None or (stat[0] != "Z" and process.cpu_s < SETTLED_S):
                process = self.seen[pid, stat[19]] = describe(pid, process.file if process else file)
            process.cpu_s = (int(stat[11]) + int(stat[12])) * TICK_S
            pending += ((child, process.file) for child in children[pid])


def read_stat(process: Path) -> list[str]:
    """Return the status of a process from its state on; empty if it has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def describe(pid: int, file: str) -> Process:
    """Return a process by its program and the test during which it was started; `file` if it does not say."""
    process = Path("/proc", str(pid))
    try:
        arguments = (process / "cmdline").read_text(errors="replace").rstrip("\0").split("\0")
        environment = (process / "environ").read_text(errors="replace").split("\0")
    except OSError:
        return Process("(ended)", file)
    variables = dict(line.partition("=")[::2] for line in environment)
    return Process(kind_of(arguments), variables.get("PYTEST_CURRENT_TEST", "").split("::")[0] or file)


def kind_of(arguments: list[str]) -> str:
    """Return what tells programs apart: a script or module of Python, a subcommand, a type of Chromium's processes."""
    program, *rest = arguments if len(arguments) > 1 else arguments[0].split(" ")
    words = [Path(program).name]
    if words[0].startswith("python"):
        while rest and rest[0].startswith("-") and rest[0] not in {"-m", "-c"}:
            rest.pop(0)
        if rest[:1] == ["-c"]:
            return f"python -c {' '.join(rest[1:2])[:60]!r}"
        names = [Path(word).name for word in rest if word != "-m"]
        words = ["python", *names[: 2 if names[:1] == ["headrace"] else 1]]
    words += [word for word in rest if word.startswith("--type=")]
    return " ".join(words)[:90]


def main() -> None:
    """Run the command, wait for the processes below it, and print the tables."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sampler, ended, started_s = Sampler(), threading.Event(), time.monotonic()
    command = subprocess.Popen(sys.argv[1:])
    thread = threading.Thread(target=sampler.run, args=(ended,))
    thread.start()
    code = None
    while code is None:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status) if pid == command.pid else None
    command.returncode = code
    ended.set()
    thread.join()
    times = os.times()
    print_tables(sampler.seen.values(), times.children_user + times.children_system, time.monotonic() - started_s)
    sys.exit(code)


def print_tables(processes: Collection[Process], total_s: float, wall_s: float) -> None:
    """Print the most expensive kinds, and kinds by test file."""
    sampled_s = sum(process.cpu_s for process in processes)
    print(f"\n{total_s:.0f} s of CPU in {wall_s:.0f} s; {total_s - sampled_s:.0f} s of it not sampled")
    for name_of in (lambda process: process.kind, lambda process: f"{process.file:60} {process.kind}"):
        costs, numbers = Counter(), Counter()
        for process in processes:
            costs[name_of(process)] += process.cpu_s
            numbers[name_of(process)] += 1
        print("\n   CPU s  number")
        for name, cpu_s in costs.most_common(MOST):
            print(f"{cpu_s:8.1f} {numbers[name]:7}  {name}")


if __name__ == "__main__":
    main()
