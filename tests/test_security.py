"""The page on the threat model names tests that exist, and secrets are compared as it says."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()
SECRET = re.compile(r"(^|_)(secret|signature|token|bearer|password|api_key)s?$")
NAMED = (ast.Name, ast.Attribute)


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or (name and name not in functions(ROOT / path))
    ]
    assert missing == []


def test_every_check_on_the_page_names_its_proof() -> None:
    boundaries = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    assert len(boundaries) == 7
    for boundary in boundaries:
        rows = [line for line in boundary.splitlines() if line.startswith("| ")][1:]
        assert rows
        for row in rows:
            paths = re.findall(r"`((?:tests|\.github)/[\w/.-]+)", row)
            assert paths, row
            assert all((ROOT / path).exists() for path in paths), row


def names_in(expression: ast.expr) -> set[str]:
    nodes = ast.walk(expression)
    return {node.id if isinstance(node, ast.Name) else node.attr for node in nodes if isinstance(node, NAMED)}


def leaks(comparison: ast.Compare) -> bool:
    """Return whether the time of a comparison tells how much of a secret is right."""
    sides = [comparison.left, *comparison.comparators]
    if any(isinstance(side, ast.Constant) or ast.unparse(side).startswith("len(") for side in sides):
        return False
    is_by_character = any(isinstance(operator, ast.Eq | ast.NotEq) for operator in comparison.ops)
    return is_by_character and any(SECRET.search(name) for side in sides for name in names_in(side))


@pytest.mark.parametrize(
    ("text", "is_leaking"),
    [
        ("sent == secret.encode()", True),
        ("self._api_key != key", True),
        ("token == ''", False),
        ("len(tokens) == number", False),
        ("a == b", False),
    ],
)
def test_comparisons_that_leak_are_found(text: str, is_leaking: bool) -> None:
    comparison = ast.parse(text, mode="eval").body
    assert isinstance(comparison, ast.Compare)
    assert leaks(comparison) == is_leaking


def test_secrets_are_compared_in_constant_time() -> None:
    """`==` on a secret that a client sends takes longer the more of it is right."""
    paths = [path for name in ("platform", "serving") for path in (ROOT / "src" / "headrace" / name).rglob("*.py")]
    assert {"sigv4.py", "access.py"} <= {path.name for path in paths}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Compare) and leaks(node)), f"{path}:{node.lineno}: {ast.unparse(node)}"
