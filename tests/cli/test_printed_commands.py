"""Each `headrace` command in docs, help texts and messages exists with its options and arguments."""

from pathlib import Path

import click
import pytest

from headrace.cli.reference import leaves
from tests.command_lines import in_lines, in_markdown, in_printed, in_spans, parse, parse_mention, texts_of

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src" / "headrace").rglob("*.py"))


def problems(where: str, commands: list[list[str]], mentions: list[list[str]]) -> list[str]:
    found = []
    for words, check in [*((words, parse) for words in commands), *((words, parse_mention) for words in mentions)]:
        try:
            check(words)
        except click.UsageError as error:
            found.append(f"{where}: headrace {' '.join(words)}: {error.format_message()}")
    return found


def test_the_commands_of_the_docs_exist() -> None:
    found, number = [], 0
    for page in PAGES:
        text = page.read_text()
        commands, mentions = list(in_markdown(text)), list(in_spans(text))
        number += len(commands)
        found += problems(str(page.relative_to(ROOT)), commands, mentions)
    assert not found, "\n".join(found)
    assert number > 100


def test_the_commands_of_messages_exist() -> None:
    found, number = [], 0
    for path in SOURCES:
        source = path.read_text()
        if "headrace " in source:
            texts = list(texts_of(source))
            mentions = [words for text in texts for words in in_spans(text)]
            commands = [words for text in texts for words in in_printed(text)]
            number += len(mentions) + len(commands)
            found += problems(str(path.relative_to(ROOT)), commands, mentions)
    assert not found, "\n".join(found)
    assert number > 150


@pytest.mark.parametrize("leaf", list(leaves()), ids=lambda leaf: "-".join(leaf.path))
def test_the_examples_of_a_command_exist(leaf) -> None:
    assert not problems("--help", list(in_lines(leaf.command.examples)), [])


def test_a_command_that_does_not_exist_is_found() -> None:
    (words,) = in_lines("headrace chat --url http://127.0.0.1:7450 --no-such-option  # a remark")
    assert problems("", [words], [])
    assert problems("", [["deploy"]], [])
    assert not problems("", [], [["deploy"]])
    assert list(in_printed("Next:\n  headrace ls --jsn\nWith headrace up it runs.")) == [["ls", "--jsn"]]
    assert list(in_printed("headrace deploy")) == []
    assert list(in_lines('eval "$(headrace env --unset)" && headrace ls | head')) == [["env", "--unset"], ["ls"]]
