"""The documentation as a site: every link and anchor leads somewhere, and every page can be found."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "sagemaker"
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
FOLDERS = ("", "quickstart/", "tutorials/", "guides/", "dialects/", "custom-code/")
PAGES = tuple(f"docs/{folder}*.md" for folder in FOLDERS)


def pages_of(item: object) -> set[str]:
    if isinstance(item, str):
        return {item}
    parts = item.values() if isinstance(item, dict) else item
    return set().union(*map(pages_of, parts))


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "site.py"), str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Run a local SageMaker" in (tmp_path / "site" / "index.html").read_text()
    page = (tmp_path / "site" / "docs" / "backends" / "index.html").read_text()
    assert re.search(r'<img [^>]*src="[^"]*images/diagrams/\w+-light.svg#only-light"', page)
    loaded = re.findall(r'<(?:script|img)[^>]* src="(https?:[^"]*)|<link rel="stylesheet" href="(https?:[^"]*)', page)
    assert loaded == [], "the site works offline"


def test_every_page_is_in_the_navigation() -> None:
    nav = pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = {path.relative_to(ROOT).as_posix() for pattern in PAGES for path in ROOT.glob(pattern)}
    assert pages - nav == set()
    assert [page for page in nav if not (ROOT / page).exists()] == []


def test_charts_and_tables_show_the_results() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "charts.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def quotes_of(page: Path) -> list[tuple[str, str]]:
    """Return the names of scripts that a page quotes, each with the quoted lines."""
    return re.findall(r"^```python title=\"([^\"]+)\"\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def unformatted(code: str) -> str:
    """Return code without what the formatter changes in a page: indentation, line breaks, quotes and comments."""
    return re.sub(r"#.*|[\s'\"]", "", code)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_quotes_scripts_of_the_examples(page: Path) -> None:
    for name, lines in quotes_of(page):
        assert unformatted(lines) in unformatted((EXAMPLES / name).read_text()), f"{name} does not have:\n{lines}"


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_scripts_that_a_tutorial_runs_are_examples_that_it_links(page: Path) -> None:
    for name in set(re.findall(r"^python (\S+\.py)", page.read_text(), re.MULTILINE)):
        assert (EXAMPLES / name).exists()
        assert f"](../../examples/sagemaker/{name})" in page.read_text()
