"""
Measure how many faults in the modules that decide most the quick tests find: mutation testing, on a sample.

  python scripts/mutants.py                      of all modules of MODULES, 40 mutants each; about an hour on two cores
  python scripts/mutants.py scheduler routing    of the modules whose path contains one of these
  python scripts/mutants.py sigv4 --most 1000    every mutant
  python scripts/mutants.py sigv4 --show         print the mutants and stop

A mutant is the module with one small fault: a comparison, an operator, a constant, a condition or a statement is
changed. It is killed if a test of the quick tier fails or hangs. No file is changed: each mutant is tested in a forked
process, which compiles the fault into the module when a test imports it. A first run without a fault records which
tests call which function: a fault in a function is tested by those tests only, the quickest first.
"""

import argparse
import ast
import builtins
import copy
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import accumulate
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "headrace"
_PLANNING = "platform/control/planning"
_SCALING = "platform/autoscaling"
MODULES = {
    "inference/engine/core/scheduler.py": "inference/engine/core",
    "inference/engine/core/blocks.py": "inference/engine/core",
    "inference/engine/core/states.py": "inference/engine/core/test_states.py inference/engine/test_state_bytes.py",
    "inference/engine/core/step_time.py": "inference/engine/core",
    "inference/engine/core/step_input.py": "inference/engine/core inference/engine/service",
    "inference/engine/spec_decode/token_match.py": "inference/engine/spec_decode",
    "inference/engine/text/stop.py": "inference/engine/text",
    "inference/runner/sampling.py": "inference/runner/test_sampling.py inference/engine/service",
    "inference/runner/quantize.py": "inference/runner/test_quantize.py inference/runner/test_quantize_int4.py",
    "core/answer_format/parser.py": "core/answer_format serving/wire/test_openai_tools.py",
    "serving/wire/openai/tool_calls.py": "serving/wire",
    "serving/wire/aws/sigv4.py": "serving/wire/aws",
    "serving/artifacts/archives.py": "serving/artifacts",
    "platform/gateway/routing.py": "platform/gateway/test_routing.py platform/gateway/test_components.py",
    f"{_PLANNING}/adapters.py": f"{_PLANNING}/test_adapters.py platform/control/components",
    **{
        f"{_PLANNING}/{name}.py": f"{_PLANNING} platform/control/loops"
        for name in ("deployment", "endpoint", "instances", "plan", "pool", "rollout", "worker_actions")
    },
    **{
        f"{_SCALING}/planning/{name}.py": _SCALING
        for name in ("decision", "schedule", "step_scaling", "target_tracking")
    },
}
"""Each module below `src/headrace`, and the tests below `tests` that must find its faults."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


Callers = dict[str, tuple[float, list[int]]]
"""By test: its duration in seconds, and the lines of the functions that it calls."""


class Mutant(NamedTuple):
    """A module with one fault."""

    tree: ast.Module
    line: int
    change: str


def main() -> None:
    """Test the mutants of the chosen modules; print the survivors and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="parts of the modules' paths (default: all modules)")
    parser.add_argument("--most", type=int, default=40, help="mutants of each module, a random sample (default: 40)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: 1)")
    parser.add_argument("--processes", type=int, default=2, help="mutants that are tested at once (default: 2)")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="of tests for each mutant, the quickest first (default: all)"
    )
    parser.add_argument("--show", action="store_true", help="print the mutants without testing them")
    given = parser.parse_args()
    chosen = {path: tests for path, tests in MODULES.items() if not given.parts or any(p in path for p in given.parts)}
    killed, total = 0, 0
    callers: dict[str, Callers] = {}
    for path, tests in chosen.items():
        mutants = sample(path, given.most, given.seed)
        if given.show:
            print(path, *(f"  {mutant.line}: {mutant.change}" for mutant in mutants), sep="\n")
            continue
        if path not in callers:
            callers |= recorded([other for other in chosen if chosen[other] == tests], tests)
        survivors = tested(path, mutants, callers[path], given.processes, given.seconds)
        killed, total = killed + len(mutants) - len(survivors), total + len(mutants)
        print(f"{len(mutants) - len(survivors):4} of {len(mutants):4} killed: {path}", flush=True)
        for mutant in survivors:
            print(f"     survived: line {mutant.line}: {mutant.change}", flush=True)
    if total:
        print(f"{killed} of {total} killed: {100 * killed / total:.1f} %")


def sample(path: str, most: int, seed: int) -> list[Mutant]:
    """Return at most so many mutants of a module, in the order of its lines."""
    mutants = list(mutants_of(ast.parse((SRC / path).read_text())))
    if len(mutants) > most:
        mutants = random.Random(seed).sample(mutants, most)
    return sorted(mutants, key=lambda mutant: (mutant.line, mutant.change))


def mutants_of(tree: ast.Module) -> Iterator[Mutant]:
    """Yield each mutant of a module."""
    for node in behaviour(tree):
        for attribute, wrong, removed in changes(node):
            right = getattr(node, attribute)
            before = ast.unparse(node).splitlines()[0]
            setattr(node, attribute, wrong)
            mutated = ast.fix_missing_locations(copy.deepcopy(tree))
            after = ast.unparse(node).splitlines()[0]
            setattr(node, attribute, right)
            line = (removed or node).lineno  # type: ignore[attr-defined]
            change = f"without  {ast.unparse(removed)}" if removed else f"{before}  ->  {after}"
            yield Mutant(mutated, line, change)


def behaviour(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a node, without annotations, decorators and what only names or describes."""
    for child in ast.iter_child_nodes(node):
        is_type = isinstance(node, ast.arg | ast.AnnAssign | ast.FunctionDef | ast.AsyncFunctionDef) and (
            child in (getattr(node, "annotation", None), getattr(node, "returns", None))
        )
        is_declared = child in getattr(node, "decorator_list", ()) or (
            isinstance(node, ast.ClassDef) and (isinstance(child, ast.keyword))
        )
        if is_type or is_declared or isinstance(child, ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr):
            continue
        yield child
        yield from behaviour(child)


def changes(node: ast.AST) -> Iterator[tuple[str, object, ast.stmt | None]]:
    """Yield each attribute of a node that a fault changes, its wrong value, and the statement that this removes."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield "ops", [COMPARISONS[type(op)]()], None
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield "op", OPERATORS[type(op)](), None
        case ast.BoolOp(op=op):
            yield "op", ast.Or() if isinstance(op, ast.And) else ast.And(), None
        case ast.Constant(value=bool() as value):
            yield "value", not value, None
        case ast.Constant(value=int() | float() as value):
            yield "value", value + 1, None
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare):
            yield "test", ast.UnaryOp(ast.Not(), test), None
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "value", ast.Constant(None), None
    body = getattr(node, "body", None)
    for at, statement in enumerate(body if isinstance(body, list) else ()):
        is_call = isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Constant)
        if is_call or isinstance(statement, ast.AugAssign):
            yield "body", [*body[:at], ast.copy_location(ast.Pass(), statement), *body[at + 1 :]], statement


def recorded(paths: list[str], tests: str) -> dict[str, Callers]:
    """Run the tests without a fault; return which of them call which functions of the modules."""
    with tempfile.NamedTemporaryFile() as record:
        calls = Calls(record.name)
        trees = {path: with_calls(path) for path in paths}
        if not survives(trees, [f"tests/{test}" for test in tests.split()], 600.0, plugin=calls):
            sys.exit(f"The tests of {', '.join(paths)} fail without a fault: {tests}")
        found = json.loads(Path(record.name).read_text())
    durations_s = found["durations_s"]
    return {
        path: {test: (durations_s[test], calls.get(path, [])) for test, calls in found["calls"].items()}
        for path in paths
    }


def with_calls(path: str) -> ast.Module:
    """Return a module whose functions report their calls: `called(path, line of the function)`."""
    tree = ast.parse((SRC / path).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            report = ast.parse(f"__import__('builtins').called({path!r}, {node.lineno})").body[0]
            node.body.insert(1 if ast.get_docstring(node) is not None else 0, ast.copy_location(report, node.body[0]))
    return ast.fix_missing_locations(tree)


def tested(path: str, mutants: list[Mutant], callers: Callers, processes: int, most_s: float) -> list[Mutant]:
    """Return the mutants that no test kills."""
    tree = ast.parse((SRC / path).read_text())

    def is_alive(mutant: Mutant) -> bool:
        parts = tests_of(tree, mutant.line, callers, most_s)
        limit_s = 20 + 6 * max((callers[test][0] for part in parts for test in part), default=0.0)
        return all(survives({path: mutant.tree}, part, limit_s) for part in parts)

    with ThreadPoolExecutor(processes) as pool:
        alive = list(pool.map(is_alive, mutants))
    return [mutant for mutant, survived in zip(mutants, alive, strict=True) if survived]


def tests_of(tree: ast.Module, line: int, callers: Callers, most_s: float) -> list[list[str]]:
    """
    Return the tests that call the function around a line; outside functions all of them.

    The first part has the file that finds most faults: the one with the most tests for their time. Each part is run by
    a process of its own, so that a mutant that the first part kills costs the import of one file of tests.
    """
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    files: dict[str, list[str]] = {}
    for test, (_, called) in callers.items():
        if not lines or max(lines) in called:
            files.setdefault(test.partition("::")[0], []).append(test)
    if not files:
        return []
    first = max(files.values(), key=lambda tests: len(tests) / (1 + sum(callers[test][0] for test in tests)))
    rest = [test for tests in files.values() if tests is not first for test in tests]
    parts = [sorted(part, key=lambda test: callers[test][0]) for part in (first, rest)]
    return [part for part in (_within(part, most_s, callers) for part in parts) if part]


def _within(tests: list[str], most_s: float, callers: Callers) -> list[str]:
    """Return the first of the tests, which together take at most so many seconds."""
    ends_s = accumulate(callers[test][0] for test in tests)
    return [test for test, end_s in zip(tests, ends_s, strict=True) if end_s <= most_s]


def survives(trees: dict[str, ast.Module], tests: list[str], limit_s: float, *, plugin: object = None) -> bool:
    """Return whether each test passes within a time in a forked process, with other trees of these modules."""
    pid = os.fork()
    if pid == 0:
        _test_here(trees, [f"--timeout={limit_s:.0f}", *tests], plugin)
    deadline_s = time.monotonic() + 20 * limit_s
    while time.monotonic() < deadline_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _test_here(trees: dict[str, ast.Module], arguments: list[str], plugin: object) -> None:
    """Run the tests in this process, which ends with their exit status."""
    status = 1
    try:
        os.setsid()
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        os.chdir(ROOT)
        for path, tree in trees.items():
            name = "headrace." + path.removesuffix(".py").replace("/", ".")
            sys.meta_path.insert(0, Finder(name, SRC / path, compile(tree, str(SRC / path), "exec")))
        options = ["-x", "-q", "--tier", "quick", "-p", "no:cacheprovider"]
        status = int(pytest.main([*options, *arguments], plugins=[plugin] if plugin is not None else []))
    finally:
        os._exit(status)


class Calls:
    """A pytest plugin that records the duration of each test, and the functions that report their calls meanwhile."""

    def __init__(self, record: str) -> None:
        self.record = record
        self.durations_s: Counter[str] = Counter()
        self.calls: dict[str, dict[str, set[int]]] = {}
        """Lines of functions, by test and path."""
        self.test = ""
        builtins.called = self.called  # type: ignore[attr-defined]

    def called(self, path: str, line: int) -> None:
        self.calls.setdefault(self.test, {}).setdefault(path, set()).add(line)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.test = item.nodeid
        self.calls.setdefault(self.test, {})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.durations_s[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        self.calls.pop("", None)  # while the modules are imported
        calls = {test: {path: sorted(lines) for path, lines in found.items()} for test, found in self.calls.items()}
        Path(self.record).write_text(json.dumps({"calls": calls, "durations_s": self.durations_s}))


class Finder(PathFinder):
    """Finds one module, whose code is given."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self.name, self.path, self.code = name, path, code

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:  # type: ignore[override]
        if fullname != self.name:
            return None
        return ModuleSpec(fullname, Loader(fullname, str(self.path), self.code), origin=str(self.path))


class Loader(SourceFileLoader):
    """Gives a module the code of the mutant."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002, an interface of importlib
        return self.code


if __name__ == "__main__":
    main()
