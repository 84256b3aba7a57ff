"""
The bodies of clients, as the stand-ins of the servers' packages read them.

Everything here is untrusted: no format is read by a library that can run code or start a program for it.
"""

import codecs
import csv
import io
import re
from collections.abc import Mapping
from typing import Any

_CHARSET = re.compile(
    r"utf-?(?:8|16|32)(?:-?[lb]e)?|(?:us-)?ascii|iso-?8859-?\d{1,2}|latin-?1|(?:windows-|cp)\d{3,4}|windows-31j"
    r"|shift-?jis|sjis|euc-?(?:jp|kr)|iso-2022-(?:jp|kr)|gb2312|gbk|gb18030|big5(?:-?hkscs)?|koi8-[rtu]|macintosh"
)
"""Character sets of text. Python's other codecs decompress, or take quadratic time (`idna`, `punycode`)."""
_PROGRAMS = frozenset({"EPS"})
"""Formats that Pillow hands to another program, whatever type the client named: Ghostscript runs PostScript."""
_CSV_HEADERS = ("question", "context", "inputs")
_RUN_CODE = ("custom_generate", "trust_remote_code")
"""Parameters of transformers' `generate` by which it downloads and runs the code of a repository."""
_MAX_PARAMETERS = 32
_PARAMETER = re.compile(
    r';\s*([^=;]*)(?:=\s*(?:"((?:[^"\\]|\\.?)*)(?:"|\Z)[^;]*|([^;]*)))?',
    re.DOTALL,
)
"""Every alternative matches at any place, so that nothing is tried twice: a quote that is not closed ends the value."""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class InvalidBody(ValueError):
    """A body that the client has to mend; each contract answers it in its own form."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def parameter(value: str, name: str) -> str:
    """
    Return the first parameter of that name; empty if the header has none.

    Source: RFC 9110 section 5.6.6. Browsers send backslashes in file names as they are, and a name has none.

    Raises `ValueError`: the header has more parameters than any client sends.
    """
    at = value.find(";")
    for _ in range(_MAX_PARAMETERS):
        match = _PARAMETER.match(value, at) if at >= 0 else None
        if match is None:
            return ""
        if match[1].strip().lower() == name:
            return (match[3] or "").strip() if match[2] is None else _ESCAPED.sub(r"\1", match[2])
        at = match.end()
    if at < len(value):
        raise ValueError(f"A header has more than {_MAX_PARAMETERS} parameters; expected fewer.")
    return ""


def decode_text(data: Any, content_type: str | None) -> str:
    """
    Return text in the character set that its type names, by default UTF-8; without a byte order mark.

    Raises `InvalidBody`: 415 for an unknown character set, 400 for bytes that are not text in it.
    """
    try:
        charset = parameter(content_type or "", "charset").lower().replace("_", "-") or "utf-8"
    except ValueError as error:
        raise InvalidBody(str(error)) from error
    try:
        codec = codecs.lookup(charset).name if _CHARSET.fullmatch(charset) else ""
    except LookupError:
        codec = ""
    if not codec:
        raise InvalidBody(f"The charset is {charset[:40]!r}; expected a known one, such as utf-8 or iso-8859-1.", 415)
    try:
        return bytes(data).decode(codec).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        place = f"the byte at position {error.start} is not text ({error.reason})"
        raise InvalidBody(
            f"The body is not {charset}: {place}. Name its character set in Content-Type, such as charset=iso-8859-1."
        ) from error


def decode_csv(text: str) -> dict[str, Any]:
    """
    Return the column `inputs` as a list, or all rows as objects, as the toolkits of Hugging Face and DJL do.

    Raises `ValueError`: the first line does not name the columns.
    """
    header = (text.splitlines() or [""])[0].lower()
    if not any(name in header for name in _CSV_HEADERS):
        raise ValueError(
            "You need to provide the correct CSV with Header columns to use it with the inference toolkit default"
            " handler."
        )
    rows = list(csv.DictReader(io.StringIO(text)))
    return {"inputs": [row["inputs"] for row in rows] if rows and "inputs" in rows[0] else rows}


def encode_csv(content: Any) -> str:
    """Return a list of dicts as CSV, with a header of the first one's keys."""
    rows = list(content)
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0].keys())
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def open_image(data: Any) -> Any:
    """
    Return an image of Pillow.

    Raises `PIL.UnidentifiedImageError`: the format is unknown, or one that needs another program.
    """
    from PIL import Image

    Image.init()
    return Image.open(io.BytesIO(data), formats=[name for name in Image.OPEN if name not in _PROGRAMS])


def check_parameters(parameters: Any) -> None:
    """Refuse parameters for a pipeline of transformers that would run code. Raises `InvalidBody`: there is one."""
    named = [name for name in _RUN_CODE if isinstance(parameters, Mapping) and name in parameters]
    if named:
        raise InvalidBody(
            f"The parameter {named[0]} is not accepted from clients, because it runs code of a repository. Remove it."
        )
