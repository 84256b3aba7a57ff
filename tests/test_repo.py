"""The repository keeps its own promises: the README's tree, file sizes, package files, links."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headrace"
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAX_LINES = 400


def source_files() -> list[Path]:
    python = [path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".pyi", ".js", ".css", ".html"}]
    native = [path for path in (ROOT / "csrc").rglob("*") if path.is_file()]
    return sorted(python + native)


def test_no_source_file_is_longer_than_a_reader_can_hold() -> None:
    long = {str(path): n for path in source_files() if (n := len(path.read_text().splitlines())) > MAX_LINES}
    assert not long


def test_package_files_hold_a_docstring_and_nothing_else() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        body = ast.parse(path.read_text()).body
        assert isinstance(body[0], ast.Expr), path
        assert len(body) == 1 or path == PACKAGE / "__init__.py", path


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_in_the_docs_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_generated_pages_and_the_tree_in_the_readme_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "docs.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
