"""The notes of a release are its section of the changelog, and nothing that was not released is left out."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPEC = spec_from_file_location("release", ROOT / "scripts" / "release.py")
release = module_from_spec(SPEC)
SPEC.loader.exec_module(release)

CHANGELOG = """# Changelog

## Unreleased

## 0.2.0 (2027-01-05)

New things,
on [a page](docs/page.md#part).

- One
  [site](https://example.com).
- Two.

## 0.1.0

Old things.
"""


def test_the_notes_have_the_text_of_the_version_with_links_that_work_outside_the_repository() -> None:
    assert release.notes(CHANGELOG, "0.2.0", "https://github.com/a/b") == (
        "New things, on [a page](https://github.com/a/b/blob/v0.2.0/docs/page.md#part).\n\n"
        "- One [site](https://example.com).\n- Two.\n"
    )


@pytest.mark.parametrize(
    ("changelog", "version", "message"),
    [
        (CHANGELOG, "0.3.0", "no text under 0.3.0"),
        (CHANGELOG.replace("## Unreleased", "## Unreleased\n\n- New."), "0.2.0", "Move them under 0.2.0"),
        (CHANGELOG.replace("Old things.", ""), "0.1.0", "no text under 0.1.0"),
    ],
)
def test_a_release_without_its_text_is_an_error(changelog: str, version: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        release.section(changelog, version)


def test_the_changelog_begins_with_what_is_not_released() -> None:
    headings = re.findall(r"^## .*", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "## Unreleased"
