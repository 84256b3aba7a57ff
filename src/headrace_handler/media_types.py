"""Parameters of headers such as `Content-Type` and `Content-Disposition`, read in time linear in their length."""

import re

_MAX_PARAMETERS = 32
_PARAMETER = re.compile(
    r';\s*([^=;]*)(?:=\s*(?:"((?:[^"\\]|\\.?)*)(?:"|\Z)[^;]*|([^;]*)))?',
    re.DOTALL,
)
"""Every alternative matches at any place, so that nothing is tried twice: a quote that is not closed ends the value."""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def parameter(value: str, name: str) -> str:
    """
    Return the first parameter of that name; empty if the header has none.

    Source: RFC 9110 section 5.6.6. Browsers send backslashes in file names as they are, and a name has none.

    Raises:
        ValueError: the header has more parameters than any client sends.
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
