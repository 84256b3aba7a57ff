"""
The needs of a test beyond the light packages, found in this one place from its imports and fixtures.

A test needs a heavy package if its file cannot be imported without it, or if its function, a fixture that it uses, or
a helper of `tests` or `benchmarks` that one of them calls, or a script that one of them starts imports the package.
Modules of `src` count with what they import when they are imported. Only what no import shows stands in a table.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

ROOT = Path(__file__).parents[1]

MODULES = {
    **dict.fromkeys(
        ("torch", "transformers", "accelerate", "peft", "compressed_tensors", "triton", "safetensors.torch"), "torch"
    ),
    "vllm": "vLLM",
    "ray": "Ray",
    "sagemaker": "the SageMaker SDK",
    "selenium": "a browser",
    "psycopg": "PostgreSQL",
    **dict.fromkeys(("joblib", "scipy", "sklearn", "xgboost"), "scikit-learn"),
    "awscli": "the AWS CLI",
    "mkdocs": "MkDocs",
}
"""The need behind each heavy module; the dependency group `test-all` installs them."""
PROGRAMS = {
    "qemu-user and g++-aarch64-linux-gnu": ("qemu-aarch64", "aarch64-linux-gnu-g++"),
    "nodejs and npm": ("node", "npm"),
}
"""Debian packages that are a need, and their programs."""
ENVIRONMENTS = {"sdk3": "the SageMaker SDK", "clients": "constrained clients", "deploy": "schemas", "vllm": "vLLM"}
"""The need behind each environment of `scripts/environment`, which the tests create themselves."""
FIXTURES = {"postgresql_server": "PostgreSQL", "sdk2": "the SageMaker SDK"}
PARAMETERS = {"postgresql": "PostgreSQL", "ray_nodes": "Ray"}
"""Needs of a value of a parameter, for fixtures that ask for others by name."""
_UNPICKLED = (
    "tests/headrace_handler/test_client_data.py::test_no_body_of_a_client_is_unpickled_by_the_images_of_sagemaker"
)
_BACKENDS = "tests/inference/backends"
_REFUSED = f"{_BACKENDS}/test_facts.py::test_a_model_that_nothing_here_runs"
TESTS = {
    f"{_UNPICKLED}[pytorch]": "torch",
    f"{_REFUSED}_is_refused_by_one_error_that_names_each_backend": "torch",
    f"{_BACKENDS}/test_libraries.py::test_marks_of_a_network_are_found_in_its_code": "torch",
    f"{_BACKENDS}/test_loading.py::test_what_transformers_lacks_is_refused_before_anything_is_loaded": "torch",
    "tests/e2e/test_coding_agents.py": "nodejs and npm",
    "tests/inference/runner/test_arm.py": "qemu-user and g++-aarch64-linux-gnu",
    "tests/platform/state/test_coordination.py::test_the_error_for_an_unreachable_server_has_no_secrets": "PostgreSQL",
    "tests/platform/state/test_store.py::test_a_server_that_cannot_be_reached_may_be_tried_again": "PostgreSQL",
    "tests/test_site.py::test_the_site_is_built_without_a_warning": "MkDocs",
}
"""Needs that no import shows, of files, tests (`file::test`) and their parameters."""

_HEAVY = "|".join({name for name in MODULES if "." not in name})
_SIGNS = re.compile(
    rf'^ *(?:from|import) +(?:{_HEAVY}|safetensors\.torch)\b|importorskip\("(?:{_HEAVY})|"environment", "'
    r'|"examples" / "|parent / "\w+\.py"',
    re.MULTILINE,
)
"""What a file contains that has a need of its own; only such files, and those that import them, are parsed."""
_IMPORTS = re.compile(r"^ *(?:from +([\w.]+) +import +(\([^)]*\)|[^\n]*)|import +([\w., ]+))", re.MULTILINE)
_AT_IMPORT = re.compile(r"^(?:from +([\w.]+) +import +(\([^)]*\)|[^\n]*)|import +([\w., ]+))", re.MULTILINE)
_AT_SKIP = re.compile(r'^pytest\.importorskip\("(\w+)', re.MULTILINE)
_NEEDS: dict[str, frozenset[str]] = {}
_INTERESTING: dict[str, bool] = {}


@dataclass(frozen=True, eq=False)
class Module:
    """A Python file and what its names need."""

    name: str
    text: str
    is_package: bool

    def imports(self, pattern: re.Pattern[str]) -> Iterator[str]:
        """Yield what it imports, as dotted names: of `from a import b`, both `a` and `a.b`."""
        for origin, names, plain in pattern.findall(self.text):
            if plain:
                yield from (name.split()[0] for name in plain.split(",") if name.strip())
                continue
            source = absolute(origin, self)
            yield source
            bare = re.sub(r"#.*", "", names).strip("() \n")
            yield from (f"{source}.{name.split()[0]}" for name in bare.split(",") if name.strip())


@dataclass
class Name:
    """The uses of a name at the top of a file: needs, modules to import, and names of this and other files."""

    needs: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    uses: set[tuple[str, str]] = field(default_factory=set)


def absolute(origin: str, module: Module) -> str:
    """Resolve a relative import."""
    dots = len(origin) - len(origin.lstrip("."))
    if not dots:
        return origin
    parts = module.name.split(".")
    parts = parts[: len(parts) - dots + module.is_package]
    return ".".join([*parts, *filter(None, [origin.lstrip(".")])])


@cache
def read(name: str) -> Module | None:
    """Return a module of this repository; None if it is another's or does not exist."""
    top, *rest = name.split(".")
    if top not in {"tests", "benchmarks", "headrace", "headrace_handler"}:
        return None
    stem = ROOT.joinpath("" if top in {"tests", "benchmarks"} else "src", top, *rest)
    for path, is_package in ((stem.with_name(f"{stem.name}.py"), False), (stem / "__init__.py", True)):
        if path.is_file():
            return Module(name, path.read_text(encoding="utf-8"), is_package)
    return None


def of_import(name: str) -> frozenset[str]:
    """Return the needs of importing a module: its own imports, and those of the modules that it imports."""
    if name not in _NEEDS:
        _NEEDS[name] = frozenset()  # for a circle
        _NEEDS[name] = _of_import(name)
    return _NEEDS[name]


def _of_import(name: str) -> frozenset[str]:
    if (need := MODULES.get(name.partition(".")[0]) or MODULES.get(name)) is not None:
        return frozenset({need})
    module = read(name)
    if module is None:
        return frozenset()
    skips = _AT_SKIP.findall(module.text) if "importorskip" in module.text else ()
    skipped = (MODULES[skip] for skip in skips if skip in MODULES)
    return frozenset(skipped).union(*(of_import(imported) for imported in module.imports(_AT_IMPORT)))


def is_interesting(name: str) -> bool:
    """Return whether a file, or one that it imports, could have a need: the others aren't parsed."""
    if name not in _INTERESTING:
        _INTERESTING[name] = False  # for a circle
        _INTERESTING[name] = _is_interesting(name)
    return _INTERESTING[name]


def _is_interesting(name: str) -> bool:
    if name.startswith(("headrace.", "headrace_handler.")):
        return bool(of_import(name))
    module = read(name)
    if module is None:
        return False
    return bool(_SIGNS.search(module.text)) or any(is_interesting(imported) for imported in module.imports(_IMPORTS))


@cache
def names_of(module_name: str) -> dict[str, Name]:
    """Return what each name at the top of a file uses."""
    module = read(module_name)
    if module is None:
        return {}
    aliases: dict[str, tuple[str, str]] = {}
    names: dict[str, Name] = {}
    for node in ast.parse(module.text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            aliases.update(_aliases(node, module))
        for target in _targets(node):
            names.setdefault(target, Name())
            _collect(node, names[target], aliases, module)
    return names


def _targets(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    assigned = (
        node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    )
    return [part.id for target in assigned for part in ast.walk(target) if isinstance(part, ast.Name)]


def _aliases(node: ast.Import | ast.ImportFrom, module: Module) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each name that an import binds, with the module and the name there ("" for a module)."""
    if isinstance(node, ast.Import):
        yield from ((alias.asname or alias.name, (alias.name, "")) for alias in node.names)
        return
    source = absolute("." * node.level + (node.module or ""), module)
    for alias in node.names:
        inner = f"{source}.{alias.name}"
        yield alias.asname or alias.name, ((inner, "") if read(inner) else (source, alias.name))


def _collect(node: ast.stmt, name: Name, aliases: dict[str, tuple[str, str]], module: Module) -> None:
    """Add what a statement uses to `name`."""
    aliases = dict(aliases)
    for part in ast.walk(node):
        if isinstance(part, ast.Import | ast.ImportFrom):
            bound = dict(_aliases(part, module))
            aliases.update(bound)
            name.modules.update(source for source, _ in bound.values())
        elif isinstance(part, ast.List):
            name.needs.update(_environments(part))
        elif isinstance(part, ast.BinOp):
            name.needs.update(_programs(part, module))
        elif isinstance(part, ast.Call) and getattr(part.func, "attr", "") == "importorskip":
            name.modules.update(arg.value for arg in part.args[:1] if isinstance(arg, ast.Constant))
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            name.uses.add(aliases.get(part.id, (module.name, part.id)))
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            source, inner = aliases.get(part.value.id, ("", ""))
            if source and not inner:
                name.uses.add((source, part.attr))


def _environments(command: ast.List) -> Iterator[str]:
    """Yield the need of a command such as `[ROOT / "scripts" / "environment", "vllm"]`."""
    if len(command.elts) == 2 and isinstance(command.elts[0], ast.BinOp):
        script, environment = (getattr(part, "value", None) for part in (command.elts[0].right, command.elts[1]))
        if script == "environment" and environment in ENVIRONMENTS:
            yield ENVIRONMENTS[environment]


def _programs(path: ast.BinOp, module: Module) -> Iterator[str]:
    """Yield the needs of a script such as `Path(__file__).parent / "script.py"`, or of a folder of `examples`."""
    at = getattr(path.right, "value", None)
    if not isinstance(at, str):
        return
    if at.endswith(".py"):
        yield from of_import(f"{module.name.rpartition('.')[0]}.{at.removesuffix('.py')}")
    elif isinstance(path.left, ast.BinOp) and getattr(path.left.right, "value", None) == "examples":
        texts = (script.read_text(encoding="utf-8") for script in (ROOT / "examples" / at).glob("*.py"))
        found = {
            name for text in texts for name in MODULES if re.search(rf"^ *(?:import|from) {name}\b", text, re.MULTILINE)
        }
        yield from (MODULES[name] for name in found)


@cache
def of_name(module_name: str, name: str) -> frozenset[str]:
    """Return the needs of a function, class or value of a file, with those of what it uses, beyond its file's own."""
    needs: set[str] = set()
    pending, seen = [(module_name, name)], set()
    while pending:
        at = pending.pop()
        if at in seen or not at[0].startswith(("tests", "benchmarks")) or not is_interesting(at[0]):
            continue
        seen.add(at)
        found = names_of(at[0]).get(at[1], Name())
        needs |= found.needs.union(*(of_import(module) for module in found.modules))
        pending.extend(found.uses)
    return frozenset(needs)


@cache
def of_file(path: Path) -> frozenset[str]:
    """Return the needs of importing a test file."""
    listed = TESTS.get(str(path.relative_to(ROOT)))
    return of_import(_module_name(path)) | ({listed} if listed else set())


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def of_item(item: pytest.Item) -> frozenset[str]:
    """Return the needs of a test: of its file, its function, its parameters and its fixtures."""
    cls, name = getattr(item, "cls", None), getattr(item, "originalname", "")  # Hypothesis hides the name of a function
    fixtures = tuple((fixture, definitions[-1].func) for fixture, definitions in fixtures_of(item).items())
    needed = _of_test(item.path, cls.__name__ if cls else name, fixtures)
    callspec = getattr(item, "callspec", None)
    values: Iterable[object] = callspec.params.values() if callspec else ()
    of_values = {PARAMETERS[value] for value in values if isinstance(value, str) and value in PARAMETERS}
    return needed.union(of_values, (TESTS[name] for name in (item.nodeid, item.nodeid.split("[")[0]) if name in TESTS))


@cache
def _of_test(path: Path, name: str, fixtures: tuple[tuple[str, object], ...]) -> frozenset[str]:
    """Return the needs that all parameters of a test have."""
    listed = {FIXTURES[fixture] for fixture, _ in fixtures if fixture in FIXTURES}
    functions = (of_function(function) for _, function in fixtures)
    return of_file(path).union(of_name(_module_name(path), name), listed, *functions)


def fixtures_of(item: pytest.Item) -> dict[str, Sequence[pytest.FixtureDef]]:
    """Return the fixtures of a test, those of fixtures included, by name; the last definition counts."""
    info = getattr(item, "_fixtureinfo", None)
    return {} if info is None else {name: found for name, found in info.name2fixturedefs.items() if found}


@cache
def of_function(function: object) -> frozenset[str]:
    """Return the needs of a function by the name at the top of its file in which it is defined."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return of_name(module, name.split(".")[0]) if module.startswith("tests.") else frozenset()


@cache
def is_installed(need: str) -> bool:
    """
    Return whether the modules behind a need can be imported, and its programs are there.

    Environments, and programs that `PROGRAMS` does not list, are the tests' own affair.
    """
    if need in PROGRAMS:
        return all(map(which, PROGRAMS[need]))
    environments = set(ENVIRONMENTS.values()) - {"the SageMaker SDK"}
    return need in environments or all(find_spec(name.split(".")[0]) for name, its in MODULES.items() if its == need)


@cache
def are_all_installed() -> bool:
    """Return whether no test lacks anything: to find the needs of all tests takes 2 s of CPU time."""
    return all(is_installed(need) for need in {*MODULES.values(), *PROGRAMS})
