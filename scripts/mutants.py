"""
Measure how many faults in the modules that decide most the quick tests find: mutation testing, on a sample.

  python scripts/mutants.py                      of all modules of MODULES, 40 mutants each; about an hour on two cores
  python scripts/mutants.py scheduler routing    of the modules whose path contains one of these
  python scripts/mutants.py sigv4 --most 1000    every mutant
  python scripts/mutants.py sigv4 --show         print the mutants and stop

A mutant is the module with one small fault: a comparison, an operator, a constant, a condition or a statement is
changed. It is killed if a test of the quick tier fails or hangs. No file is changed: each mutant is tested in a forked
process, which compiles the fault into the module when a test imports it.
"""

import argparse
import ast
import copy
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
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
    f"{_PLANNING}/adapters.py": "platform/control/components",
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
    parser.add_argument("--show", action="store_true", help="print the mutants without testing them")
    given = parser.parse_args()
    chosen = {path: tests for path, tests in MODULES.items() if not given.parts or any(p in path for p in given.parts)}
    killed, total = 0, 0
    for path, tests in chosen.items():
        mutants = sample(path, given.most, given.seed)
        if given.show:
            print(path, *(f"  {mutant.line}: {mutant.change}" for mutant in mutants), sep="\n")
            continue
        survivors = tested(path, mutants, tests, given.processes)
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


def tested(path: str, mutants: list[Mutant], tests: str, processes: int) -> list[Mutant]:
    """Return the mutants that no test kills."""
    original = Mutant(ast.parse((SRC / path).read_text()), 0, "")
    start_s = time.monotonic()
    if not survives(path, original, tests, 600.0):
        sys.exit(f"The tests of {path} fail without a fault: {tests}")
    limit_s = 20 + 6 * (time.monotonic() - start_s)
    with ThreadPoolExecutor(processes) as pool:
        alive = list(pool.map(lambda mutant: survives(path, mutant, tests, limit_s), mutants))
    return [mutant for mutant, is_alive in zip(mutants, alive, strict=True) if is_alive]


def survives(path: str, mutant: Mutant, tests: str, limit_s: float) -> bool:
    """Return whether the tests pass with a mutant in a forked process."""
    pid = os.fork()
    if pid == 0:
        _test_here(path, mutant, tests)
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _test_here(path: str, mutant: Mutant, tests: str) -> None:
    """Run the tests in this process, which ends with their exit status."""
    status = 1
    try:
        os.setsid()
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        os.chdir(ROOT)
        name = "headrace." + path.removesuffix(".py").replace("/", ".")
        sys.meta_path.insert(0, Finder(name, SRC / path, compile(mutant.tree, str(SRC / path), "exec")))
        files = [f"tests/{test}" for test in tests.split()]
        status = int(pytest.main(["-x", "-q", "--tier", "quick", "-p", "no:cacheprovider", *files]))
    finally:
        os._exit(status)


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
