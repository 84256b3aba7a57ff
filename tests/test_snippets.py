"""A Python snippet of the docs stands alone: a reader can paste it into an empty file."""

import ast
import builtins
from collections.abc import Iterator

import pytest

from tests.pages import DOCS, steps_of

PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]


def undefined(code: str) -> set[str]:
    """Return the names that the code reads but neither imports nor defines."""
    defined, read = set(dir(builtins)), set[str]()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                defined |= {(alias.asname or alias.name).split(".")[0] for alias in names}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)) | ast.Name(id=name, ctx=ast.Store()):
                defined.add(name)
            case ast.Name(id=name):
                read.add(name)
    return read - defined


def snippets() -> Iterator[tuple[str, str]]:
    """Yield the untitled snippets, which are not a part of a script, with their places."""
    for page in PAGES:
        for step in steps_of(page):
            if step.language == "python" and step.file is None:
                yield f"{page.relative_to(DOCS.parent)}:{step.line}", step.code


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("client.invoke(x=1)", {"client"}),
        ("import boto3\nclient = boto3.client('s3')\nprint(client)", set()),
        ("def model_fn(folder):\n    return open(folder)", set()),
        ("[row for row in rows]", {"rows"}),
    ],
)
def test_names_that_a_snippet_lacks_are_found(code: str, names: set[str]) -> None:
    assert undefined(code) == names


def test_every_snippet_defines_the_names_that_it_uses() -> None:
    found = [f"{place}: {', '.join(sorted(names))}" for place, code in snippets() if (names := undefined(code))]
    assert not found, "\n".join(found)
