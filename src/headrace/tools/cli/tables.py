"""Tables, labelled lines and ages in the output of the platform's commands."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import IO, Any

_COMMAND = re.compile(r"`[^`\n]+`")
_NO_BREAK = "\0"
_GAP = "  "


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """
    Format rows with columns as wide as their widest cell.

    On a terminal that is too narrow, the cells of the widest columns are wrapped between words.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    if sys.stdout.isatty():
        least = [max(len(word) for cell in column for word in _kept(cell).split(" ")) for column in columns]
        widths = _narrowed(widths, least, shutil.get_terminal_size().columns - len(_GAP) * (len(widths) - 1))
    return "\n".join(line for row in rows for line in _row_lines(row, widths))


def _narrowed(widths: Sequence[int], least: Sequence[int], total: int) -> list[int]:
    """Return the widths of columns that have `total` characters, if none is narrower than `least`."""
    found = list(widths)
    while sum(found) > total:
        widest = max(range(len(found)), key=lambda column: found[column] - least[column])
        if found[widest] <= least[widest]:
            break
        found[widest] -= 1
    return found


def _row_lines(row: tuple[str, ...], widths: Sequence[int]) -> Iterator[str]:
    cells = [[cell] if len(cell) <= width else _lines(cell, width) for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        yield _GAP.join(f"{part:<{width}}" for part, width in zip(parts, widths, strict=True)).rstrip()


def labelled(rows: Sequence[tuple[str, object]]) -> str:
    """Format a line for each label that has a value; on a terminal long values are wrapped between words."""
    indent = max(len(label) for label, _ in rows) + 2
    lines = (f"{label:<{indent}}{value}" for label, value in rows if value not in ("", None))
    return "\n".join(wrapped(line, indent) for line in lines)


def wrapped(line: str, indent: int = 0, *, stream: IO[Any] | None = None) -> str:
    """
    Wrap a text between words at the width of the terminal, further lines indented; elsewhere return it unchanged.

    A command between backticks stays on one line, so that it can be copied.
    """
    if not (stream or sys.stdout).isatty() or " " not in line[indent:].strip():
        return line
    return "\n".join(_lines(line, shutil.get_terminal_size().columns, indent))


def _lines(text: str, width: int, indent: int = 0) -> list[str]:
    """Wrap a text between words, further lines indented; words and commands that are wider stay whole."""
    lines = textwrap.wrap(
        _kept(text), width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _kept(text: str) -> str:
    """Replace the spaces of commands, so that each is one word."""
    return _COMMAND.sub(lambda command: command[0].replace(" ", _NO_BREAK), text)


def age(since: datetime, now: datetime) -> str:
    """Format an age such as `45s`, `12m`, `3h` or `2d`."""
    seconds = max(0, int((now - since).total_seconds()))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def count_of(number: float, noun: str, plural: str = "") -> str:
    """Format a number of things: `1 endpoint`, `2 endpoints`, `2 copies`, `0.5 cores`."""
    shown = f"{number:g}" if number != int(number) else f"{int(number):,}"
    return f"{shown} {noun if number == 1 else plural or noun + 's'}"
