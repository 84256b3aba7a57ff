"""The page on the threat model names tests that exist, and secrets are compared as it says."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()
COMPARED = re.compile(r"(secret|signature|token|digest|api_key)$")


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


def test_secrets_are_compared_in_constant_time() -> None:
    """`==` on a secret that a client sends takes longer the more of it is right."""
    folders = [ROOT / "src" / "headrace" / name for name in ("platform", "server", "wire/aws", "gateway")]
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
                sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
                named = [side for side in sides if COMPARED.search(side)]
                assert len(named) < 2, f"{path}:{node.lineno}: {ast.unparse(node)}"
