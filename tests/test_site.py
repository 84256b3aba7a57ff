"""The documentation as a site: every link and anchor leads somewhere, and every page can be found."""

import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
PAGES = ("docs/*.md", "docs/dialects/*.md", "docs/custom-code/*.md", "docs/guides/*.md")


class _Loader(yaml.SafeLoader):
    """Reads the names of Python functions that MkDocs understands as text."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda _loader, suffix, _node: suffix)


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


def test_every_page_is_in_the_navigation() -> None:
    nav = pages_of(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=_Loader)["nav"])
    pages = {path.relative_to(ROOT).as_posix() for pattern in PAGES for path in ROOT.glob(pattern)}
    assert pages - nav == set()
    assert [page for page in nav if not (ROOT / page).exists()] == []
