r"""
Translation of the regular expressions in botocore's models from Java to Python.

Java's `\w`, `\d` and `\s` are ASCII only, a value must match entirely, and `\p{...}` names a Unicode category.
"""

import functools
import itertools
import re
import unicodedata

_ASCII_CLASSES = {"ASCII": r"\x00-\x7f", "Alnum": "a-zA-Z0-9", "Print": r"\x20-\x7e"}
_REPAIRS = (
    (re.compile(r"\\u10000-\\u10FFFF", re.IGNORECASE), r"\\U00010000-\\U0010FFFF"),  # Java allows only four digits here
    (re.compile(r"\\uD800\\uDC00-\\uDBFF\\uDFFF", re.IGNORECASE), r"\\U00010000-\\U0010FFFF"),  # surrogate pairs
    (re.compile(r"\$\{\d+,\d+\}"), "$"),
    (re.compile(r"\\z"), r"\\Z"),
    (re.compile(r"\\w-_"), r"\\w\\-_"),
    (
        re.compile(r"\(\[-a-z0-9\]\*\[a-z0-9\]\)\{0,39\}\?"),
        "([-a-z0-9]*[a-z0-9])?",
    ),  # avoids backtracking in exponential time
)
_ASSIGNED = (range(0x33480), range(0xE0000, 0xE01F0))
"""All characters but those for private use; those in between are unassigned, or letters of a later Unicode."""
_PROPERTY = re.compile(r"\\p\{(?P<name>\w+)\}")


@functools.cache
def compiled(pattern: str) -> re.Pattern[str] | None:
    """
    Compile a pattern for use with `fullmatch`.

    Returns None for a pattern with features of Java only, which is then not checked. The models that the tests read
    have none; a later botocore may have one, and requests must not fail because of it.
    """
    for wrong, right in _REPAIRS:
        pattern = wrong.sub(right, pattern)
    try:
        return re.compile(_with_properties(pattern), re.ASCII)
    except re.error:
        return None


def _with_properties(pattern: str) -> str:
    r"""Replace `\p{L}` by its ranges of characters, in brackets unless it is inside brackets."""
    parts, last = [], 0
    for match in _PROPERTY.finditer(pattern):
        before = pattern[: match.start()]
        ranges = _ASCII_CLASSES.get(match["name"]) or _category(match["name"])
        is_in_brackets = before.rfind("[") > before.rfind("]")
        parts += [pattern[last : match.start()], ranges if is_in_brackets else f"[{ranges}]"]
        last = match.end()
    return "".join([*parts, pattern[last:]])


@functools.cache
def _category(name: str) -> str:
    """Return the characters of a category (`L`, `Zs`) as the inside of brackets. Takes about 30 ms, once."""
    ranges: list[list[int]] = []
    for code in itertools.chain(*_ASSIGNED):
        if not unicodedata.category(chr(code)).startswith(name):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
