"""
CPU and wall seconds of every test and fixture, with `--costs FILE`; `scripts/test_costs.py` prints them.

CPU seconds include those of child processes, also of children that still run: what a server uses during a test counts
for the test, what it uses to start and stop counts for its fixture.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TABLE = Path(__file__).with_name("costs.json")
"""What `scripts/test_costs.py --write` measured last: files by wall time come first, slow tests are left out."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_OTHERS: set[str] = set()
"""Processes that are not below this one: reading all each time takes 5 ms, more than most tests."""


class Cost(NamedTuple):
    """Seconds; of children too."""

    cpu_s: float
    wall_s: float

    def __add__(self, other: "Cost") -> "Cost":  # type: ignore[override]
        return Cost(self.cpu_s + other.cpu_s, self.wall_s + other.wall_s)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.cpu_s - other.cpu_s, self.wall_s - other.wall_s)

    def part(self, share: float) -> "Cost":
        """Return a share of it."""
        return Cost(self.cpu_s * share, self.wall_s * share)


NOTHING = Cost(0.0, 0.0)


@dataclass(frozen=True)
class Table:
    """Costs by the name of a file, test function (all parameters together) and fixture."""

    files: dict[str, Cost] = field(default_factory=dict)
    tests: dict[str, Cost] = field(default_factory=dict)
    fixtures: dict[str, Cost] = field(default_factory=dict)


@cache
def read_table(path: Path = TABLE) -> Table:
    """Return the committed table; an empty one if there is none."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    return Table(**{kind: {name: Cost(*cost) for name, cost in costs.items()} for kind, costs in stored.items()})


def fixture_name(definition: pytest.FixtureDef) -> str:
    """Return where a fixture is defined, and its name."""
    return f"{definition.func.__module__.replace('.', '/')}.py::{definition.argname}"


class Recorder:
    """Attributes time to the innermost test or fixture that is running."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.file = ""
        self.tests: defaultdict[str, Cost] = defaultdict(lambda: NOTHING)
        self.fixtures: defaultdict[str, Cost] = defaultdict(lambda: NOTHING)
        self.imports: defaultdict[str, Cost] = defaultdict(lambda: NOTHING)
        self.running: list[tuple[defaultdict[str, Cost], str]] = []
        self.last = spent()

    @contextmanager
    def measure(self, kind: defaultdict[str, Cost], name: str) -> Iterator[None]:
        self.start(kind, name)
        try:
            yield
        finally:
            self.stop()

    def start(self, kind: defaultdict[str, Cost], name: str) -> None:
        self._attribute()
        self.running.append((kind, name))

    def stop(self) -> None:
        self._attribute()
        self.running.pop()

    def _attribute(self) -> None:
        now = spent()
        if self.running:
            kind, name = self.running[-1]
            kind[name] += now - self.last
        self.last = now

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        with self.measure(self.imports, collector.nodeid.split("::")[0]):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with self.measure(self.tests, item.nodeid.split("[")[0]):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef) -> Iterator[None]:
        if fixturedef.func.__module__ == "_pytest.python":  # a parameter
            return (yield)
        name = fixture_name(fixturedef)
        try:
            with self.measure(self.fixtures, name):
                return (yield)
        finally:  # runs before the fixture's own end and after those that depend on it; the hook below ends it
            fixturedef.addfinalizer(lambda: self.start(self.fixtures, name))

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef) -> None:
        if self.running and self.running[-1] == (self.fixtures, fixture_name(fixturedef)):
            self.stop()

    def pytest_runtest_logfinish(self, location: tuple[str, int | None, str]) -> None:
        """Write after each file, for a run that is cut off."""
        if location[0] != self.file:
            self.file = location[0]
            self.write()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self.write()

    def write(self) -> None:
        kinds = {"tests": self.tests, "fixtures": self.fixtures, "imports": self.imports}
        self.target.write_text(json.dumps(kinds))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--costs`."""
    parser.addoption("--costs", type=Path, metavar="FILE", help="write CPU and wall seconds to FILE.*.json")


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder if it is asked for; each process of xdist writes to a file of its own beside FILE."""
    if target := config.getoption("costs"):
        process = getattr(config, "workerinput", {}).get("workerid", "main")
        config.pluginmanager.register(Recorder(target.absolute().with_suffix(f".{process}.json")), "headrace-costs")


def spent() -> Cost:
    """Return the CPU time of this process and its children so far, and the time."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return Cost(own + _of_running_children(), time.monotonic())


def _of_running_children() -> float:
    """Return the CPU time of the processes below this one, with that of their children that have ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # the usual case
        return 0.0
    ticks, below = {}, defaultdict(list)
    pids = {path.name for path in Path("/proc").iterdir() if path.name.isdecimal()}
    _OTHERS.intersection_update(pids)
    for name in pids - _OTHERS:
        try:
            values = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        ticks[name] = sum(map(int, values[11:15]))
        below[values[1]].append(name)
    pending, found = list(below[str(os.getpid())]), set()
    while pending:
        found.add(name := pending.pop())
        pending += below[name]
    _OTHERS.update(ticks.keys() - found)
    return sum(ticks[name] for name in found) * _TICK_S
