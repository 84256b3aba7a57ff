"""Properties files (`serving.properties`, `config.properties`), read as `java.util.Properties.load` reads them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.core.client_text import reason_of
from headrace.core.errors import SettingsError

_MAX_BYTES: Final = 1 << 20
_WHITE: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
"""Other separators of Unicode (U+0085, U+2028) are characters of a value."""
_KEY: Final = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> dict[str, str]:
    """
    Read a properties file; without the file there are no properties.

    Raises:
        SettingsError: it cannot be read, is too large, or has a malformed escape.
    """
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {reason_of(error)}. Expected a Java properties file.") from error
    if len(content) > _MAX_BYTES:
        raise SettingsError(f"{path} has more than {_MAX_BYTES} bytes; expected at most {_MAX_BYTES}.")
    return parse_properties(_decode(content), source=str(path))


def _decode(content: bytes) -> str:
    """
    Decode as UTF-8, else as Java's ISO-8859-1.

    `Properties.load` reads ISO-8859-1 from a stream and any encoding from a reader; editors write UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def parse_properties(text: str, *, source: str = "The properties file") -> dict[str, str]:
    r"""
    Parse the text of a properties file; of equal keys the last one counts.

    White space after a value is part of it, as in Java; `source` names the file in errors.

    Raises:
        SettingsError: `\u` is not followed by four hexadecimal digits.
    """
    properties: dict[str, str] = {}
    for line in _logical_lines(text.removeprefix("\ufeff")):
        key = _KEY.match(line)
        assert key is not None, "the pattern matches the empty string"
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None, "the pattern matches the empty string"
        properties[_unescape(key[0], source)] = _unescape(line[separator.end() :], source)
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines without comments and blank lines; an odd number of backslashes at the end joins the next one."""
    parts: list[str] = []
    for raw in _LINE_END.split(text):
        line = raw.lstrip(_WHITE)
        if line.startswith(("#", "!")) and not parts:
            continue
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        parts += filter(None, [line[:-1] if continues else line])
        if parts and not continues:
            yield "".join(parts)
            parts.clear()
    if parts:
        yield "".join(parts)


def _unescape(text: str, source: str) -> str:
    if "\\" not in text:
        return text

    def replace(escape: re.Match[str]) -> str:
        if escape[1] is not None:
            return chr(int(escape[1], 16))
        if escape[2] == "u":
            raise SettingsError(f"{source} has {text!r:.100}; expected four hexadecimal digits after \\u.")
        return _CONTROLS.get(escape[2], escape[2])

    # Two escapes may be the halves of one character, as Java's strings are UTF-16.
    return _ESCAPE.sub(replace, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
