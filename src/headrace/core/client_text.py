"""Quoting of text that a client sent, in errors and in the log."""

from urllib.parse import quote

_MAX_QUOTED_CHARACTERS = 200


def escaped(text: str) -> str:
    """Return the text on one line: control characters, including line ends, are percent-encoded."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else quote(character, errors="replace") for character in text)


def shortened(text: str) -> str:
    """Return the beginning of a client's text, on one line."""
    head = text[:_MAX_QUOTED_CHARACTERS]
    return escaped(head) if len(head) == len(text) else f"{escaped(head)}…"
