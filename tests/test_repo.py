"""The repository keeps its own promises: generated pages, file sizes, package files, links."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headrace"
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
DOCS = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
VENDOR = PACKAGE / "serving" / "http" / "web" / "vendor"
MAX_LINES = 400
MAX_README_WORDS = 700
FIRST_SCREEN_LINES = 40
MAX_LINKS_ON = 15


def source_files() -> list[Path]:
    python = [path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".pyi", ".js", ".ts", ".css", ".html"}]
    native = [path for path in (ROOT / "csrc").rglob("*") if path.is_file()]
    return sorted(path for path in python + native if VENDOR not in path.parents)


def test_no_source_file_is_longer_than_a_reader_can_hold() -> None:
    long = {str(path): n for path in source_files() if (n := len(path.read_text().splitlines())) > MAX_LINES}
    assert not long


def test_vendored_libraries_are_those_of_the_manifest() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "vendor.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_list_of_vendored_libraries_can_be_audited_by_npm() -> None:
    listed = subprocess.check_output([sys.executable, ROOT / "scripts" / "vendor.py", "--list"], text=True).split()
    assert "markdown-it" in {name.rpartition("@")[0] for name in listed}
    assert all(re.fullmatch(r"(@[\w-]+/)?[\w.-]+@\d+(\.\d+)+", name) for name in listed)


def test_package_files_hold_a_docstring_and_nothing_else() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        body = ast.parse(path.read_text()).body
        assert isinstance(body[0], ast.Expr), path
        assert len(body) == 1 or path == PACKAGE / "__init__.py", path


def test_links_in_the_docs_lead_somewhere() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in DOCS
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if not target.startswith(("http://", "https://")) and not (page.parent / target).exists()
    ]
    assert not dead, "\n".join(dead)


def test_the_readme_is_short_and_its_first_screen_has_the_commands_of_a_user_and_a_number() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= MAX_README_WORDS
    first_screen = "\n".join(text.splitlines()[:FIRST_SCREEN_LINES])
    first_block = first_screen.split("```bash\n")[1].split("```")[0]
    assert [line.split()[0] for line in first_block.splitlines()] == ["pip", "headrace"]
    assert "times the tokens per second" in first_screen
    assert len(re.findall(r"\]\(", text.split("## Read on")[1].split("## Licence")[0])) <= MAX_LINKS_ON


def test_the_contributors_page_and_the_tree_name_every_package() -> None:
    contributing, tree = (ROOT / "CONTRIBUTING.md").read_text(), (ROOT / "docs" / "tree.md").read_text()
    for package in PACKAGE.rglob("__init__.py"):
        folder = package.parent.relative_to(ROOT).as_posix()
        assert f"| `{folder}` |" in tree
        if package.parent.parent == PACKAGE:
            assert f"\n{package.parent.name}/ " in contributing


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    sources = (path.read_text() for path in PACKAGE.rglob("*.py"))
    makers = [text for text in sources if "prometheus_client" in text]
    names = {name for text in makers for name in re.findall(r'"((?:headrace|ts)_[a-z_]*[a-z])"', text)}
    assert {"headrace_handler_queued_requests", "ts_inference_requests"} <= names
    assert [name for name in sorted(names) if f"`{name}" not in page] == []


def test_generated_pages_and_the_list_of_packages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "docs.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
