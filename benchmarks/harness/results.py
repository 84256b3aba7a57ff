"""Command lines, result files and tables of benchmarks."""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

RESULTS: Final = Path(__file__).parents[1] / "results"
_Row = TypeVar("_Row")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints a module's docstring as it is written."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def names(text: str) -> list[str]:
    """Return the names of an option, separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def numbers(text: str) -> list[int]:
    """Return the whole numbers of an option, separated by commas."""
    return [int(part) for part in text.split(",")]


def choose(
    what: str, rows: Sequence[_Row], wanted: Iterable[str], keys: Callable[[_Row], set[str]]
) -> tuple[_Row, ...]:
    """
    Return the rows of which a key is wanted; all if nothing is.

    Raises:
        KeyError: No row has one of the names; the message has the known ones.
    """
    wanted = set(wanted)
    known = dict.fromkeys(key for row in rows for key in sorted(keys(row)))
    if unknown := wanted - known.keys():
        raise KeyError(f"There is no {what} {min(unknown)!r}; expected some of: {', '.join(known)}.")
    return tuple(row for row in rows if not wanted or wanted & keys(row))


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def exit_on_sigterm() -> None:
    """Turn SIGTERM into an exception, so that the blocks that end the measured processes run."""

    def end(*_: object) -> None:
        tell("Ended by SIGTERM.")
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def write_result(output: Path, result: Any, page: str | None = None) -> None:
    """Write a result as JSON, and its page beside it with `.md`."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if page is not None:
        output.with_suffix(".md").write_text(page, encoding="utf-8")


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, text_columns: int = 1) -> str:
    """Return a Markdown table; columns after the first ones are aligned to the right."""
    return "\n".join(table_lines(header, rows, text_columns=text_columns))


def table_lines(header: Sequence[str], rows: Iterable[Sequence[object]], *, text_columns: int = 1) -> Iterator[str]:
    """Yield the lines of such a table."""
    yield _line(header)
    yield "|" + "---|" * text_columns + "---:|" * (len(header) - text_columns)
    for row in rows:
        yield _line(row)


def page_table(header: Sequence[str], rows: Iterable[Sequence[object]], *, text_columns: int = 1) -> Iterator[str]:
    """Yield such a table with an empty line before and after it, for a page of the docs."""
    first, *others = table_lines(header, rows, text_columns=text_columns)
    yield from (f"\n{first}", *others, "\n")


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |".replace("|  |", "| |").replace("|  |", "| |")
