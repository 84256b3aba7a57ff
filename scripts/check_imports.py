"""Check that every import from this repository, also in a function of a test, names something that exists there."""

import ast
import gc
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = {"headrace": "src", "headrace_handler": "src", "tests": ".", "benchmarks": "."}
"""The packages and the folder that each is in."""


def main() -> int:
    """Print what is missing."""
    gc.disable()  # it would look through a million nodes of syntax trees again and again: 12 s instead of 2
    missing = [problem for package, folder in SOURCES.items() for problem in problems_of(ROOT / folder / package)]
    print(*missing, sep="\n", end="\n" if missing else "")
    return bool(missing)


def problems_of(folder: Path) -> Iterator[str]:
    """Yield the imports of a package that lead nowhere."""
    for path in sorted(folder.rglob("*.py")):
        for node in statements(parsed(path)):
            if isinstance(node, ast.ImportFrom):
                module = module_of(node, path)
                lost = [alias.name for alias in node.names if module and not exists(module, alias.name)]
                yield from (f"{path.relative_to(ROOT)}:{node.lineno}: {module} has no {name}" for name in lost)
            elif isinstance(node, ast.Import):
                lost = [alias.name for alias in node.names if is_ours(alias.name) and not location(alias.name)]
                yield from (f"{path.relative_to(ROOT)}:{node.lineno}: there is no module {name}" for name in lost)


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield all statements, without their expressions, which are most of a tree."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            pending += children if isinstance(children := getattr(node, part, ()), list) else ()


def module_of(node: ast.ImportFrom, path: Path) -> str:
    """Return the full name of the module that is imported from; empty for one of another project."""
    if not node.level:
        return node.module if node.module and is_ours(node.module) else ""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[parts[0] == "src" : len(parts) - node.level]
    name = ".".join([*parts, *([node.module] if node.module else [])])
    return name if is_ours(name) else ""


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in SOURCES


def exists(module: str, name: str) -> bool:
    """Return whether a module has a name: a submodule, or what one of its statements binds."""
    path = location(module)
    if path is None and module.count("."):  # perhaps made by a package when it is imported
        parent = module.rpartition(".")[0]
        return "add_submodules" in bound(location(parent)) if location(parent) else exists(parent, name)
    if name == "*" or location(f"{module}.{name}") is not None:
        return True
    return path is not None and not bound(path).isdisjoint({name, "*", "__getattr__"})


@cache
def location(name: str) -> Path | None:
    """Return the file of a module or package, also of a compiled one with stubs."""
    stem = ROOT.joinpath(SOURCES[name.partition(".")[0]], *name.split("."))
    candidates = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py", stem.with_name(f"{stem.name}.pyi"), stem)
    return next((path for path in candidates if path.exists()), None)


@cache
def bound(path: Path) -> frozenset[str]:
    """Return the names that a module binds outside of functions and classes."""
    names: set[str] = set()
    path = path / "__init__.py" if path.is_dir() else path
    pending: list[ast.AST] = [parsed(path)] if path.is_file() else []
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.alias):
                names.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            else:
                pending.append(node)
    return frozenset(names)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


if __name__ == "__main__":
    sys.exit(main())
