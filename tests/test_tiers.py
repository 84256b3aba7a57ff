"""Needs of tests are found from their imports and fixtures, and a tier says what it left out."""

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import costs, needs
from tests.inference.runner.native_models import ISAS
from tests.tiers import KEPT, OTHER_ISA, Tier

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("headrace.core.errors", set()),
        ("headrace.inference.runner.torch.runner", {"torch"}),  # imports modules that import torch
        ("tests.inference.models.bf16_folder", {"torch"}),
        ("tests.browser", {"a browser"}),
        ("tests.postgresql", set()),  # a function imports psycopg
        ("tests.platform.cluster.test_ray_platforms", {"Ray"}),  # skipped without
    ],
)
def test_the_needs_of_a_module_are_those_of_what_it_imports(module: str, found: set[str]) -> None:
    assert needs.of_import(module) == found


@pytest.mark.parametrize(
    ("module", "name", "found"),
    [
        ("tests.conftest", "smollm2_path", set()),
        ("tests.conftest", "smollm2_folder", {"torch"}),  # imports a helper that imports torch
        ("tests.postgresql", "new_database", {"PostgreSQL"}),
        ("tests.serving.server.conftest", "page", {"a browser"}),
        ("tests.inference.backends.vllm.support", "vllm_python", {"vLLM"}),  # makes an environment
        ("tests.headrace_handler.test_torchserve_handlers", "load", set()),
    ],
)
def test_a_function_needs_what_it_imports_and_what_the_functions_that_it_calls_import(
    module: str, name: str, found: set[str]
) -> None:
    assert needs.of_name(module, name) == found


def test_a_value_of_a_parameter_can_be_a_need(request: pytest.FixtureRequest) -> None:
    assert needs.of_item(request.node) == set()
    node = SimpleNamespace(
        path=request.node.path,
        originalname=request.node.originalname,
        nodeid=request.node.nodeid,
        callspec=SimpleNamespace(params={"any_place": "postgresql"}),
        _fixtureinfo=SimpleNamespace(name2fixturedefs={}),
    )
    assert needs.of_item(node) == {"PostgreSQL"}


def test_no_conftest_needs_a_heavy_package() -> None:
    assert [path for path in TESTS.rglob("conftest.py") if needs.of_file(path)] == []


def test_the_tests_that_are_listed_exist() -> None:
    """Those of `tests/costs.json` may be old: they name no test that matters then."""
    for listed in (*KEPT, *needs.TESTS):
        path, _, function = listed.partition("[")[0].partition("::")
        tree = ast.parse((needs.ROOT / path).read_text())
        names = {getattr(node, "name", None) for node in tree.body}
        names |= {name for node in tree.body if isinstance(node, ast.Assign) for name in map(ast.unparse, node.targets)}
        assert not function or function in names, listed


def test_a_tier_leaves_out_what_it_does_not_hold_and_says_so() -> None:
    quick, named = Tier("quick"), Tier("named")
    assert quick.lacks(frozenset()) is None
    assert quick.lacks(frozenset({"torch"})) == "torch"
    assert named.lacks(frozenset({"vLLM"})) is None  # the tests make its environment
    quick.left_out.update({"torch": 1200, "a browser": 34})
    summary = (
        "Left out: 1,234 test functions (1,200 need torch, 34 need a browser); scripts/test --all runs everything."
    )
    assert quick.summary() == summary


def test_costs_include_children_that_run_and_that_have_ended() -> None:

    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    before = costs.spent()
    with subprocess.Popen([sys.executable, "-c", f"{burn}input()"], stdin=subprocess.PIPE) as child:
        while (costs.spent() - before).cpu_s < 0.3:  # while it runs
            assert child.poll() is None
        child.communicate(b"\n")
    assert (costs.spent() - before).cpu_s >= 0.3


@pytest.mark.parametrize(("num_users", "cpu_s", "is_slow"), [(2, 0.0, True), (3, 0.0, False), (3, 1.0, True)])
def test_a_test_is_slow_with_its_part_of_its_fixtures(num_users: int, cpu_s: float, is_slow: bool) -> None:
    def platform() -> None: ...

    definition = SimpleNamespace(func=platform, argname="platform")
    fixtures = SimpleNamespace(name2fixturedefs={"platform": [definition]})
    tests = [f"tests/test_a.py::test_{number}" for number in range(num_users)]
    items = [SimpleNamespace(nodeid=f"{test}[x]", _fixtureinfo=fixtures) for test in tests]
    tier = Tier("quick")
    tier.costs = costs.Table(
        tests={tests[0]: costs.Cost(cpu_s, cpu_s)}, fixtures={costs.fixture_name(definition): costs.Cost(2.0, 2.0)}
    )
    assert (tests[0] in tier.slow_tests(items)) is is_slow
    assert Tier("all").slow_tests(items) == set()


@pytest.mark.parametrize(("num_gone", "is_slow"), [(0, True), (3, False)])
def test_parameters_that_are_left_out_already_take_their_part_of_the_time(num_gone: int, is_slow: bool) -> None:
    tier = Tier("quick")
    tier.costs = costs.Table(tests={"tests/test_a.py::test_it": costs.Cost(1.6, 1.6)})
    fixtures = SimpleNamespace(name2fixturedefs={})
    item = SimpleNamespace(nodeid="tests/test_a.py::test_it[best]", _fixtureinfo=fixtures)
    assert bool(tier.slow_tests([item], {"tests/test_a.py::test_it": num_gone})) is is_slow


def test_the_quick_tier_runs_kernels_with_the_best_instruction_set_only(request: pytest.FixtureRequest) -> None:
    for tier, isa, expected in (("quick", "old", OTHER_ISA), ("quick", ISAS[0], None), ("all", "old", None)):
        node = SimpleNamespace(
            path=request.node.path,
            originalname=request.node.originalname,
            nodeid=request.node.nodeid,
            callspec=SimpleNamespace(params={"isa": isa}),
            _fixtureinfo=SimpleNamespace(name2fixturedefs={}),
        )
        assert Tier(tier).lacks_of(node) == expected
