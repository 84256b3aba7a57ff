"""Read what the user of `headrace chat` enters: a line, a pasted text of several lines, or a text between quotes."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import click

QUOTES = '"""'
"""Opens and closes a message of several lines."""
_PROMPT = "\n> "
_CONTINUATION = ". "


@dataclass(frozen=True, slots=True)
class Entered:
    """A message for the model, or a command of the conversation."""

    text: str
    is_command: bool = False


def read_entered(read_line: Callable[[str], str | None]) -> Entered | None:
    """
    Read a message or a command; None at the end of the input, which also closes an open message.

    Args:
        read_line: reads a line with a prompt; a pasted text may be several lines at once.
    """
    line = read_line(_PROMPT)
    if line is None:
        return None
    text = line.lstrip()
    if not text.startswith(QUOTES):
        return Entered(line, is_command=line.startswith("/") and "\n" not in line)
    text = text.removeprefix(QUOTES)
    while not text.rstrip().endswith(QUOTES) and (more := read_line(_CONTINUATION)) is not None:
        text += f"\n{more}"
    return Entered(text.rstrip().removesuffix(QUOTES).strip("\n"))


def read_from_stdin(*, is_terminal: bool) -> Entered | None:
    """Read from the terminal or a pipe; on a terminal Ctrl-C only discards what was entered so far."""
    while True:
        try:
            return read_entered(_ask if is_terminal else _next_line)
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            click.echo("\n(/exit or Ctrl-D to leave)", err=True)


def _ask(prompt: str) -> str | None:
    import readline  # line editing and history for input()

    if "libedit" not in (readline.__doc__ or ""):
        readline.parse_and_bind("set enable-bracketed-paste on")  # a paste is one entry; Python switches it off
    try:
        return input(prompt)
    except EOFError:
        click.echo(err=True)
        return None


def _next_line(_: str) -> str | None:
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None
