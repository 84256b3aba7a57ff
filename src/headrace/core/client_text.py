"""Text that a client sent, as errors and the log quote it."""

from urllib.parse import quote

_MAX_QUOTED_CHARACTERS = 200


def escaped(text: str) -> str:
    """The text with its control characters, line ends among them, percent-encoded: it stays on one line."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else quote(character, errors="replace") for character in text)


def shortened(text: str) -> str:
    """The beginning of a client's text, on one line."""
    head = text[:_MAX_QUOTED_CHARACTERS]
    return escaped(head) if len(head) == len(text) else f"{escaped(head)}…"
