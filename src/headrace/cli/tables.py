"""Tables, labelled lines and ages in the output of the platform's commands."""

from collections.abc import Sequence
from datetime import datetime


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Format rows with columns as wide as their widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def labelled(rows: Sequence[tuple[str, object]]) -> str:
    """Format a line for each label that has a value."""
    width = max(len(label) for label, _ in rows) + 2
    return "\n".join(f"{label:<{width}}{value}" for label, value in rows if value not in ("", None))


def age(since: datetime, now: datetime) -> str:
    """Format an age such as `45s`, `12m`, `3h` or `2d`."""
    seconds = max(0, int((now - since).total_seconds()))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
