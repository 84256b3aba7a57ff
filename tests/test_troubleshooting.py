"""The page that starts from symptoms: every message that it quotes is one that the source can print."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
QUOTES = [
    line
    for block in re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
MIN_SYMPTOMS = 20


def templates_of(path: Path) -> Iterator[str]:
    """Yield the texts of a source file, with `…` where a value is put in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def templates() -> tuple[str, ...]:
    sources = (ROOT / "src" / "headrace").rglob("*.py")
    return tuple(text for path in sources for text in templates_of(path))


@pytest.mark.parametrize("quote", QUOTES)
def test_the_quoted_message_is_in_the_source(quote: str) -> None:
    pattern = re.compile(".*".join(re.escape(part.strip()) for part in quote.split("…")))
    assert any(pattern.search(text) for text in templates()), quote


def test_the_page_covers_the_likely_symptoms() -> None:
    assert PAGE.read_text().count("\n### ") >= MIN_SYMPTOMS
