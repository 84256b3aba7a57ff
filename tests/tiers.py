"""
The tiers of the suite: which tests run, and the line at the end that says what was left out.

`quick` is `scripts/test`: tests that need only light packages and are not slow. `all` is `scripts/test --all`. Without
`--tier`, every test that was named runs if its packages are installed.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace import _native
from tests import costs, needs, sharing

PLUGIN = "headrace-tier"
TIERS = ("quick", "named", "all")
SLOW = "more time"
"""The need of a slow test."""
OTHER_ISA = "another instruction set"
"""The need of a test of a parameter `isa` other than this machine's best: the quick tier runs only that."""
SLOW_CPU_S = 0.8
SLOW_WALL_S = 6.0
"""A test is slow if it takes longer, in `tests/costs.json`, with its part of its fixtures."""
_ENVIRONMENT = "tests/serving/handlers/test_environment.py::test_an_environment"
_FORMATTERS = "tests/platform/host/test_formatters.py::test_an_archive_with_formatters"
KEPT = (
    "tests/inference/runner/test_native.py::test_logits_match_the_reference",
    "tests/inference/runner/test_native_invariance.py::test_logits_do_not_depend_on_the_batch_the_chunks_or_the_threads",
    "tests/inference/engine/test_real_model.py::test_a_question_is_answered_correctly",
    "tests/inference/engine/test_real_model.py::test_a_grammar_constrains_the_real_model",
    "tests/fuzz/test_targets.py::test_some_seed_of_each_target_is_accepted",
    f"{_ENVIRONMENT}_has_the_packages_and_those_of_the_base_and_is_made_once",
    "tests/test_language.py::test_no_text_uses_the_words_that_the_field_does_not",
    "tests/e2e/test_lifecycle.py::test_sigterm_lets_a_running_answer_finish",
    "tests/platform/host/test_end_to_end.py::test_a_model_is_uploaded_deployed_streamed_from_and_deleted",
    "tests/platform/host/test_end_to_end.py::test_a_killed_platform_loses_nothing_and_its_workers_keep_serving",
    "tests/platform/host/test_autoscaling.py::test_a_variant_scales_out_then_to_zero_and_is_woken_by_a_request",
    "tests/platform/host/test_components.py::test_models_behind_one_endpoint_answer_by_their_names",
    f"{_FORMATTERS}_is_deployed_by_djls_image_and_streams_their_lines",
    "tests/platform/host/test_gateway_metrics.py::test_a_queue_at_zero_survives_the_platform_and_scales_its_endpoint",
    "tests/inference/engine/core/test_blocks.py::TestBlockPool",
    "tests/inference/runner/test_sampling.py::test_the_native_sampler_gives_the_very_same_tokens_as_numpy",
    "tests/platform/autoscaling/test_autoscaler.py::test_load_scales_out_and_its_end_scales_in",
    "tests/platform/control/loops/test_reconciler.py::test_a_crash_at_any_write_loses_nothing",
    "tests/platform/control/planning/test_consolidation.py::TestHost",
    "tests/platform/control/planning/test_plan_rolling_back.py::test_nothing_is_lost_whenever_it_is_taken_back",
    "tests/platform/state/test_model.py::TestStore",
)
"""
Slow tests of the quick tier, as no quicker one covers the same.

The real model and each kind of life once; then what searches the states of the modules that decide most.
"""
GPU_HINT = "TRITON_INTERPRET=0 scripts/test --all -m gpu runs those of a GPU"


class LeftOut(pytest.Module):
    """A file that is not imported."""

    def collect(self) -> list[pytest.Item]:
        tier: Tier = self.config.pluginmanager.get_plugin(PLUGIN)
        tier.left_out[tier.lacks(needs.of_file(self.path))] += _num_tests(self.path)
        return []


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

    def lacks_of(self, item: pytest.Item) -> str | None:
        """Return the first need for which the tier leaves this test out."""
        if self.name == "all" and needs.are_all_installed():
            return None
        lacks = self.lacks(needs.of_item(item))
        if lacks is None and self.name == "quick" and _isa(item) not in (None, _native.available_isas()[0]):
            return OTHER_ISA
        return lacks

    def slow_tests(self, items: list[pytest.Item], gone: Mapping[str, int] = {}) -> set[str]:
        """
        Return the slow test functions; a fixture counts in equal parts for those that use it.

        `gone`: how many parameters of a function are left out already; the others take their part of its time.
        """
        if self.name != "quick":
            return set()
        fixtures = {
            _name(item): {costs.fixture_name(found[-1]) for found in needs.fixtures_of(item).values()} for item in items
        }
        users = Counter(fixture for used in fixtures.values() for fixture in used)
        num_left = Counter(_name(item) for item in items)
        slow = set()
        for test, used in fixtures.items():
            own = self.costs.tests.get(test, costs.NOTHING).part(num_left[test] / (num_left[test] + gone.get(test, 0)))
            parts = [(self.costs.fixtures.get(fixture, costs.NOTHING), users[fixture]) for fixture in used]
            cpu_s = own.cpu_s + sum(cost.cpu_s / number for cost, number in parts)
            wall_s = own.wall_s + sum(cost.wall_s / number for cost, number in parts)
            if (cpu_s > SLOW_CPU_S or wall_s > SLOW_WALL_S) and not test.startswith(KEPT):
                slow.add(test)
        return slow

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        """Leave out a file before it is imported."""
        need = self.lacks(needs.of_file(module_path)) if module_path.is_relative_to(needs.ROOT) else None
        if need is None:
            return None
        return LeftOut.from_parent(parent, path=module_path)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out tests, and put slow files first if several processes share them, so that none ends alone."""
        kept, gone, counted = [], [], set()
        lacks = {item: self.lacks_of(item) for item in items}
        left = [item for item in items if lacks[item] is None]
        slow = self.slow_tests(left, Counter(_name(item) for item in items if lacks[item] is not None))
        for item in items:
            need = lacks[item] or (SLOW if _name(item) in slow else None)
            (gone if need else kept).append(item)
            if need and _name(item) not in counted:
                counted.add(_name(item))
                self.left_out[need] += 1
        if gone:
            config.hook.pytest_deselected(items=gone)
        items[:] = kept
        if hasattr(config, "workerinput"):
            self.put_slow_first(items)

    def put_slow_first(self, items: list[pytest.Item]) -> None:
        """Order groups of files, and the files of each, by the time that they take."""
        files = {_file(item): self.costs.files.get(_file(item), costs.NOTHING).wall_s for item in items}
        groups: defaultdict[str, float] = defaultdict(float)
        for file, wall_s in files.items():
            groups[sharing.group_of(file)] += wall_s

        def order(item: pytest.Item) -> tuple[float, str, float]:
            group = sharing.group_of(_file(item))
            return -groups[group], group, -files[_file(item)]

        items.sort(key=order)

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
    config.pluginmanager.register(Tier(config.getoption("tier")), PLUGIN)


def _file(item: pytest.Item) -> str:
    """Return the path of the file of a test."""
    return item.nodeid.split("::")[0]


def _name(item: pytest.Item) -> str:
    """Return the name of the test function."""
    return item.nodeid.split("[")[0]


def _isa(item: pytest.Item) -> object:
    """Return the instruction set with which a test runs; None if it has no such parameter."""
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("isa")


def _num_tests(path: Path) -> int:
    """Return the number of test functions of a file without importing it."""
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return sum(node.name.startswith("test_") for node in functions)
