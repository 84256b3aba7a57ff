"""Text of clients, and reasons of failures, as errors and the log show them."""

import os
from urllib.parse import quote

_MAX_QUOTED_CHARACTERS = 200
_HARMFUL = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), 127, *range(128, 160)) if code not in {9, 10}}


def escaped(text: str) -> str:
    """Return the text on one line: control characters, including line ends, are percent-encoded."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else quote(character, errors="replace") for character in text)


def printable(text: str) -> str:
    """Remove control characters: a model must not move the cursor or write the terminal's clipboard."""
    return text.translate(_HARMFUL)


def shortened(text: str) -> str:
    """Return the beginning of a client's text, on one line."""
    head = text[:_MAX_QUOTED_CHARACTERS]
    return escaped(head) if len(head) == len(text) else f"{escaped(head)}…"


def reason_of(error: Exception) -> str:
    """Return what a failed read, write or connection says to people: without numbers, paths and addresses."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    # Lookups of names have negative numbers, which only their own text explains.
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(getattr(error, "strerror", None) or error)
