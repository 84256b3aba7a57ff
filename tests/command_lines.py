"""Command lines of `headrace` in texts: find them, and parse them without running them."""

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress

import click

from headrace.tools.cli.main import COMMANDS, cli

_START = re.compile(rf"(?<![\w./:=-])headrace +(?=(?:{'|'.join(COMMANDS)})(?![\w:./-]))")
_LINE = re.compile(r"\s*(?:eval \"\$\()?headrace ")
_FENCE = re.compile(r"^( *)```(?:bash|sh|shell|console|text)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_TEMPLATE = re.compile(r"\$\{[^{}]*\}")
_ENDS = frozenset({"|", "||", "&", "&&", ";", "<", ">", ">>", ")", "1>", "2>"})
_SILENT = frozenset({"option", "more", "place", "platform.option"})
"""Placeholders of f-strings that stand for an option or for nothing."""
_IGNORED = frozenset({"--help", "--help-all", "[OPTIONS]"})
_PLACEHOLDER = re.compile(r"[A-Z_]+|<[^>]+>|\[[A-Z_]+\]|[A-Z_]+=.*|…|\.\.\.")


def parse(arguments: list[str]) -> None:
    """
    Parse a command line without running it.

    Raises:
        click.UsageError: a command, an option or an argument does not exist.
    """
    command: click.Command = cli
    while isinstance(command, click.Group):
        name, *arguments = arguments
        found = command.get_command(click.Context(command), name)
        if found is None:
            raise click.UsageError(f"No such command '{name}'.")
        command = found
        if isinstance(command, click.Group) and not arguments:
            return
    words = ["1" if _PLACEHOLDER.fullmatch(word) else word for word in arguments if word not in _IGNORED]
    try:
        command.make_context(command.name, words)
    except click.MissingParameter:
        raise
    except click.BadParameter as error:
        if "does not exist" not in error.message and words == arguments:  # a file of the reader, or a placeholder
            raise


def parse_mention(arguments: list[str]) -> None:
    """Parse a command line in a sentence, which may leave out arguments and values."""
    with suppress(click.MissingParameter):
        try:
            parse(arguments)
        except click.BadOptionUsage as error:
            if "requires an argument" not in error.message:
                raise


def in_lines(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each command in lines of a shell; words after two spaces are a remark."""
    for line in text.replace("\\\n", " ").splitlines():
        for start in _START.finditer(line):
            if "#" in line[: start.start()] or "`" in line:
                continue
            rest = line[start.end() :]
            is_substituted = line[: start.start()].endswith("$(")
            yield _words(rest.partition(")")[0] if is_substituted else rest)


def in_spans(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each command between backticks; the name of a command alone is a mention."""
    for span in _SPAN.findall(text):
        if _START.match(span):
            found = list(in_lines(span))
            yield from (words for words in found if not _is_mention(words))


def in_markdown(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each command in the blocks of code of a page."""
    for _, block in _FENCE.findall(text):
        yield from in_lines(block)


def in_printed(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each command that a line of a message begins with, as in examples and ready cards."""
    for line in text.replace("\\\n", " ").splitlines():
        if _LINE.match(line):
            yield from (words for words in in_lines(line) if not _is_mention(words))


def in_page(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each command in HTML or JavaScript, with `1` for a placeholder of a template literal."""
    while (filled := _TEMPLATE.sub("1", text)) != text:
        text = filled
    for start in _START.finditer(text):
        command = re.split(r"[`<\n]", text[start.end() :], maxsplit=1)[0].rstrip(";,. ")
        words = _words(command.rstrip("\"'") if command.count('"') % 2 else command)
        if not _is_mention(words):
            yield words


def texts_of(source: str) -> Iterator[str]:
    """Yield the text of each string literal, with `1` for a placeholder."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        if is_text or isinstance(node, ast.JoinedStr):
            yield _filled(node)


def _filled(node: ast.AST) -> str:
    """Return the text of a literal, with `1` for each placeholder."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.JoinedStr)
    values = (
        str(part.value)
        if isinstance(part, ast.Constant)
        else ("" if ast.unparse(getattr(part, "value", part)) in _SILENT else "1")
        for part in node.values
    )
    return "".join(values)


def _words(rest: str) -> list[str]:
    """Split a command line as a shell does, up to a pipe, a redirection or a remark."""
    command = re.split(r"\s{2,}", rest.strip(), maxsplit=1)[0]
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if word in _ENDS:
                break
            words.append(word)
    except ValueError:  # an apostrophe in a remark
        return command.split()
    return words


def _is_mention(words: list[str]) -> bool:
    return len(words) == 1 or words[1:] in (["..."], ["…"])
