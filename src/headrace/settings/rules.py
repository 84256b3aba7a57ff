"""
How the text of one setting is read.

A `Rule` knows what is wanted, in words for people, and turns text into a value. All sources of settings (flags,
environment, properties) give text, so that each value is read and refused in the same way wherever it came from.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.sizes import parse_size

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True)
class Rule:
    """Reads one setting's text; `read` raises `ValueError` when the text is not what is wanted."""

    wanted: str
    """As it ends the sentence "wanted: …"."""
    read: Callable[[str], Any]
    choices: tuple[str, ...] = ()
    is_flag: bool = False
    """A command line flag without a value: `--name / --no-name`."""
    is_secret: bool = False
    """Never shown or logged."""


def setting(rule: Rule, default: Any) -> Any:
    """A dataclass field that is read by `rule`."""
    return field(default=default, metadata={"rule": rule})


def text(wanted: str) -> Rule:
    """Any text that is not empty."""
    return Rule(wanted=wanted, read=_read_text)


def secret(wanted: str) -> Rule:
    """Text that is never shown."""
    return Rule(wanted=wanted, read=_read_text, is_secret=True)


def choice(*names: str) -> Rule:
    """One of a few names, in any case."""
    return Rule(wanted=f"one of {', '.join(names)}", read=lambda raw: _read_choice(raw, names), choices=names)


def boolean() -> Rule:
    """True or false."""
    return Rule(wanted="true or false", read=_read_boolean, is_flag=True)


def integer(minimum: int, maximum: int | None = None) -> Rule:
    """A whole number in a range."""
    return Rule(
        wanted=f"a whole number{_range(minimum, maximum)}", read=lambda raw: _read_integer(raw, minimum, maximum)
    )


def number(minimum: float, unit: str) -> Rule:
    """A finite number of some unit."""
    return Rule(wanted=f"a number of {unit} from {minimum:g} up", read=lambda raw: _read_number(raw, minimum))


def size(minimum: int = 1) -> Rule:
    """A number of bytes, such as `2GiB`, `500MB` or `1048576`."""
    return Rule(wanted="a size such as 2GiB, 500MB or 1048576", read=lambda raw: parse_size(raw, minimum=minimum))


def share_or_auto() -> Rule:
    """A number from 0 to 1, or None for `auto`."""
    return Rule(wanted="auto or a number from 0 to 1", read=_read_share_or_auto)


def folder() -> Rule:
    """A folder, which need not exist yet."""
    return Rule(wanted="a folder", read=lambda raw: Path(_read_text(raw)).expanduser())


def file() -> Rule:
    """A file, which is looked for when it is read."""
    return Rule(wanted="a file", read=lambda raw: Path(_read_text(raw)).expanduser())


def names() -> Rule:
    """Texts separated by commas."""
    return Rule(wanted="names separated by commas", read=_read_names)


def _range(minimum: int, maximum: int | None) -> str:
    return f" from {minimum} up" if maximum is None else f" from {minimum} to {maximum}"


def _read_text(raw: str) -> str:
    value = raw.strip()
    if not value:
        raise ValueError(raw)
    return value


def _read_choice(raw: str, names: Sequence[str]) -> str:
    value = raw.strip().lower()
    if value not in names:
        raise ValueError(raw)
    return value


def _read_boolean(raw: str) -> bool:
    value = raw.strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ValueError(raw)


def _read_integer(raw: str, minimum: int, maximum: int | None) -> int:
    value = int(raw)
    if value < minimum or (maximum is not None and value > maximum):
        raise ValueError(raw)
    return value


def _read_number(raw: str, minimum: float) -> float:
    value = float(raw)
    if not math.isfinite(value) or value < minimum:
        raise ValueError(raw)
    return value


def _read_share_or_auto(raw: str) -> float | None:
    if raw.strip().lower() == "auto":
        return None
    value = float(raw)
    if not 0 <= value <= 1:
        raise ValueError(raw)
    return value


def _read_names(raw: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in raw.split(",") if part.strip())
