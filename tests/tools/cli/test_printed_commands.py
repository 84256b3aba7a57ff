"""Each `headrace` command in docs, help texts and messages exists with its options and arguments."""

from pathlib import Path

import click
import pytest

from tests.command_lines import in_lines, in_markdown, in_page, in_printed, in_spans, parse, parse_mention, texts_of

from .cli_page import leaves

ROOT = Path(__file__).parent.parent.parent.parent
FOLDERS = ("docs", "examples", "benchmarks", "deploy", ".github")
PAGES = [*sorted(ROOT.glob("*.md")), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]
WEB = [
    page
    for suffix in ("js", "html")
    for page in sorted((ROOT / "src" / "headrace").rglob(f"*.{suffix}"))
    if "vendor" not in page.parts
]
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


def test_the_commands_of_web_pages_exist() -> None:
    found, number = [], 0
    for page in WEB:
        mentions = list(in_page(page.read_text()))
        number += len(mentions)
        found += problems(str(page.relative_to(ROOT)), [], mentions)
    assert not found, "\n".join(found)
    assert number > 8


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
    assert list(in_page("<code>headrace logs ${name} -f</code> and `headrace rm ${a ? `${b} c` : d}`")) == [
        ["logs", "1", "-f"],
        ["rm", "1"],
    ]
