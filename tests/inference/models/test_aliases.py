"""The sizes of built-in models in the pages are those of the table of aliases."""

import re

import pytest

from headrace.core.sizes import format_size
from headrace.inference.models.aliases import ALIASES

PAGES = ("README.md", "docs/quickstart/*.md", "docs/guides/*.md", "docs/models.md", "docs/install.md")


def sizes_of(name: str) -> set[str]:
    """Return the download and the stored size of an alias, with a decimal and without."""
    alias = ALIASES[name]
    sizes = (sum(part.wheel_bytes for part in alias.parts), alias.stored_bytes)
    return {text for size in sizes for text in (format_size(size), f"{size / 2**20:.0f} MiB")}


@pytest.mark.parametrize(("name", "title"), [("smollm2", "SmolLM2-135M-Instruct"), ("minilm", "all-MiniLM-L6-v2")])
def test_pages_state_the_size_of_a_built_in_model_in_the_unit_of_the_commands(
    name: str, title: str, pytestconfig: pytest.Config
) -> None:
    stated = [
        size
        for pattern in PAGES
        for page in pytestconfig.rootpath.glob(pattern)
        for line in page.read_text().splitlines()
        if re.search(rf"{name}\b|{title}", line)
        for size in re.findall(r"\b[\d.]+ [KMG]i?B\b", line)
    ]
    assert stated
    assert set(stated) <= sizes_of(name)
