"""The prose of the tree stays in the plain English of the field (CONTRIBUTING.md, "Language").

Checked are the words and openings that a machine can find; the rest is for review.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("src/headrace", "src/headrace_handler")
EVERYWHERE = (*PACKAGES, "tests", "benchmarks", "examples", "scripts")
TEXT = {".py", ".pyi", ".cpp", ".h", ".inl", ".md", ".js", ".ts", ".css", ".html", ".txt", ".yaml", ".sh"}

# Pronouns without a subject behind them, and phrases that the field does not use.
BANNED = (
    *("somebody", "nobody", "anybody", "everybody", "whoever", "whomever", "whosoever"),
    *("anew", "in vain", "for ever", "so long as", "as it were", "at all events", "comes of", "by us"),
)
# Between the words of a phrase: an underscore in a name, or the end of a line and the mark of a comment.
_GAP = r"(?:_|\s+(?:(?:#|//|\*)\s*)?)"
_BANNED = re.compile(
    rf"(?<![a-z])(?:{'|'.join(phrase.replace(' ', _GAP) for phrase in BANNED)})(?![a-z])", re.IGNORECASE
)
# Errors say `expected`.
_WANTED = re.compile(r"[;,:.] wanted\b|(?<!  )\bwanted:")  # two spaces: a parameter in a docstring

# Pages made from code, whose texts are checked where they come from.
_GENERATED = "<!-- Made by scripts/docs.py"

_OPENINGS = {"What", "Who", "Whom", "Whose", "Which", "Whether", "How", "Why", "Where", "Of"}


def checked(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted([ROOT / folder] if (ROOT / folder).is_file() else (ROOT / folder).rglob("*")):
            if not path.is_file() or path.suffix not in TEXT or path == Path(__file__):
                continue
            if not path.read_text().startswith(_GENERATED):
                yield path


def at_line(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def banned_words(text: str) -> Iterator[tuple[int, str]]:
    for match in _BANNED.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tell somebody", [(1, "somebody")]),
        ("a\n# so long\n    # as it runs", [(2, "so long # as")]),
        ("renewed, renown, a manew", []),
        ("def test_as_long_as_nobody_calls", [(1, "nobody")]),
        ("def used_by_us_alone", [(1, "by_us")]),
    ],
)
def test_a_banned_phrase_is_found_as_whole_words_also_over_a_line_break(
    text: str, found: list[tuple[int, str]]
) -> None:
    assert list(banned_words(text)) == found


def test_no_text_uses_the_words_that_the_field_does_not() -> None:
    places = (*PACKAGES, "csrc", "docs", "tests", "benchmarks", "examples", "scripts", "README.md")
    found = [
        f"{at_line(path, line)}: {word}"
        for path in checked(*places, "CONTRIBUTING.md", "CHANGELOG.md")
        for line, word in banned_words(path.read_text())
    ]
    assert not found, "\n".join(found)


def python_sources(*folders: str, where: str = "") -> Iterator[tuple[Path, ast.Module]]:
    """Parse the files whose text matches the pattern `where`: to parse and walk all of them takes many seconds."""
    for path in checked(*(folders or PACKAGES)):
        if path.suffix == ".py" and re.search(where, text := path.read_text()):
            yield path, ast.parse(text)


def documented(tree: ast.Module) -> Iterator[tuple[ast.AST, int, str]]:
    """Yield each node that has a docstring, with its line and the docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node, getattr(node, "lineno", 1), docstring


def test_a_class_docstring_says_enough_to_stand_alone_where_an_editor_shows_it() -> None:
    found = [
        f"{at_line(path, line)}: {docstring}"
        for path, tree in python_sources(where=r"(?m)^\s*class\s")
        for node, line, docstring in documented(tree)
        if isinstance(node, ast.ClassDef) and (len(docstring.split()) < 5 or docstring.startswith("One of "))
    ]
    assert not found, "\n".join(found)


def test_a_docstring_opens_with_an_imperative_or_a_noun_not_with_a_question_word_or_a_fragment() -> None:
    found = [
        f"{at_line(path, line)}: {docstring.splitlines()[0]}"
        for path, tree in python_sources(*EVERYWHERE, where=rf"[\"']\s*(?:{'|'.join(_OPENINGS)})\b")
        for _, line, docstring in documented(tree)
        if re.split(r"\W", docstring, maxsplit=1)[0] in _OPENINGS
    ]
    assert not found, "\n".join(found)


def test_an_error_says_what_was_expected_not_what_was_wanted() -> None:
    found = [
        f"{at_line(path, node.lineno)}: {node.value}"
        for path, tree in python_sources(where=r"\bwanted\b")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _WANTED.search(node.value)
    ]
    assert not found, "\n".join(found)


def test_a_variable_is_named_after_the_thing_that_it_holds() -> None:
    found = [
        at_line(path, node.lineno)
        for path, tree in python_sources(*EVERYWHERE, where=r"\bone\s*(?:[^\w\s.([]|in\b)")
        for node in ast.walk(tree)
        if (isinstance(node, ast.arg) and node.arg == "one")
        or (isinstance(node, ast.Name) and node.id == "one" and isinstance(node.ctx, ast.Store))
    ]
    assert not found, "\n".join(found)


def test_quantization_is_spelled_in_one_way() -> None:
    """The field, its formats and the command `headrace quantize` spell it with a z."""
    places = (*PACKAGES, "csrc", "docs", "tests", "benchmarks", "examples", "scripts", "README.md")
    found = [
        f"{at_line(path, number)}: {line.strip()}"
        for path in checked(*places, "CONTRIBUTING.md")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "quantis" in line.lower()
    ]
    assert not found, "\n".join(found)
