"""
The tiers of the suite: which tests run, and the line at the end that says what was left out.

`quick` is `scripts/test`: tests that need only light packages and are not slow. `all` is `scripts/test --all`. Without
`--tier`, every test that was named runs if its packages are installed.
"""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests import costs, needs

TIERS = ("quick", "named", "all")
SLOW = "more time"
"""The need of a slow test."""
SLOW_CPU_S = 2.0
SLOW_WALL_S = 8.0
"""A test is slow if it, or the most expensive of its fixtures, takes longer in `tests/costs.json`."""
KEPT: tuple[str, ...] = ()
"""Slow tests of the quick tier, as no quicker one covers the same: the real model, and each kind of life once."""
GPU_HINT = "TRITON_INTERPRET=0 scripts/test --all -m gpu runs those of a GPU"


class Tier:
    """Leaves out what the tier does not hold, and counts it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.left_out: Counter[str] = Counter()
        """Test functions by their need."""
        self.costs = costs.read_table()

    def lacks(self, needed: frozenset[str]) -> str | None:
        """Return the first need for which the tier leaves a test out."""
        if self.name == "quick":
            return min(needed, default=None)
        return min((need for need in needed if not needs.is_installed(need)), default=None)

    def is_slow(self, item: pytest.Item) -> bool:
        if self.name != "quick" or _name(item) in KEPT:
            return False
        definitions = [found[-1] for found in needs.fixtures_of(item).values()]
        times = [self.costs.fixtures.get(costs.fixture_name(definition), costs.NOTHING) for definition in definitions]
        times.append(self.costs.tests.get(_name(item), costs.NOTHING))
        return any(time.cpu_s > SLOW_CPU_S or time.wall_s > SLOW_WALL_S for time in times)

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out a file before it is imported."""
        if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
            return None
        need = self.lacks(needs.of_file(collection_path))
        if need is None:
            return None
        self.left_out[need] += _num_tests(collection_path)
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out tests, and put slow files first if several processes share them, so that none ends alone."""
        kept, gone, counted = [], [], set()
        for item in items:
            need = self.lacks(needs.of_item(item)) or (SLOW if self.is_slow(item) else None)
            (gone if need else kept).append(item)
            if need and _name(item) not in counted:
                counted.add(_name(item))
                self.left_out[need] += 1
        if gone:
            config.hook.pytest_deselected(items=gone)
        items[:] = kept
        if hasattr(config, "workerinput"):
            items.sort(key=lambda item: -self.costs.files.get(item.nodeid.split("::")[0], costs.NOTHING).wall_s)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = dict(self.left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take what a process of xdist left out: all leave out the same."""
        self.left_out |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.name == "all" and not self.left_out:
            num_skipped = len(terminalreporter.stats.get("skipped", ()))
            terminalreporter.write_line(f"Left out: nothing but the {num_skipped} tests skipped above; {GPU_HINT}.")
        elif self.left_out:
            terminalreporter.write_line(self.summary())

    def summary(self) -> str:
        """Say what was left out and how to get it."""
        parts = ", ".join(f"{number:,} need {need}" for need, number in self.left_out.most_common())
        return f"Left out: {self.left_out.total():,} test functions ({parts}); scripts/test --all runs everything."


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--tier`."""
    parser.addoption("--tier", choices=TIERS, default="named", help="which tests run (tests/tiers.py)")


def pytest_configure(config: pytest.Config) -> None:
    """Register the tier."""
    config.pluginmanager.register(Tier(config.getoption("tier")), "headrace-tier")


def _name(item: pytest.Item) -> str:
    """Return the name of the test function."""
    return item.nodeid.split("[")[0]


def _num_tests(path: Path) -> int:
    """Return the number of test functions of a file without importing it."""
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return sum(node.name.startswith("test_") for node in functions)
