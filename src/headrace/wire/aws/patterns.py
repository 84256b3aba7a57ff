r"""
Regular expressions of botocore's models, which are Java's, for Python.

Java's `\w`, `\d` and `\s` are ASCII only, a value must match as a whole, and `\p{...}` names a Unicode category.
"""

import functools
import itertools
import re
import unicodedata

_ASCII_CLASSES = {"ASCII": r"\x00-\x7f", "Alnum": "a-zA-Z0-9", "Print": r"\x20-\x7e"}
_REPAIRS = (
    (re.compile(r"\\u10000-\\u10FFFF", re.IGNORECASE), r"\\U00010000-\\U0010FFFF"),  # Java has only four digits there
    (re.compile(r"\\uD800\\uDC00-\\uDBFF\\uDFFF", re.IGNORECASE), r"\\U00010000-\\U0010FFFF"),  # surrogate pairs
    (re.compile(r"\$\{\d+,\d+\}"), "$"),
    (re.compile(r"\\z"), r"\\Z"),
    (re.compile(r"\\w-_"), r"\\w\\-_"),
    (re.compile(r"\(\[-a-z0-9\]\*\[a-z0-9\]\)\{0,39\}\?"), "([-a-z0-9]*[a-z0-9])?"),  # 2^n ways to fail, else
)
_ASSIGNED = (range(0x33480), range(0xE0000, 0xE01F0))
"""Every character but those for private use; what lies between is not assigned, or a letter of a later Unicode."""
_PROPERTY = re.compile(r"\\p\{(?P<name>\w+)\}")


@functools.cache
def compiled(pattern: str) -> re.Pattern[str] | None:
    """
    A pattern to use with `fullmatch`.

    None: it uses what only Java has, and is not held up. That is none in the models which the tests see; a later
    botocore may bring one, and a request must not fail for that.
    """
    for wrong, right in _REPAIRS:
        pattern = wrong.sub(right, pattern)
    try:
        return re.compile(_with_properties(pattern), re.ASCII)
    except re.error:
        return None


def _with_properties(pattern: str) -> str:
    r"""`\p{L}` as the ranges of characters that it means, in brackets of its own unless it stands in some."""
    parts, last = [], 0
    for found in _PROPERTY.finditer(pattern):
        before = pattern[: found.start()]
        ranges = _ASCII_CLASSES.get(found["name"]) or _category(found["name"])
        is_in_brackets = before.rfind("[") > before.rfind("]")
        parts += [pattern[last : found.start()], ranges if is_in_brackets else f"[{ranges}]"]
        last = found.end()
    return "".join([*parts, pattern[last:]])


@functools.cache
def _category(name: str) -> str:
    """The characters of a category (`L`, `Zs`) as the inside of brackets. Takes some 30 ms, once."""
    ranges: list[list[int]] = []
    for code in itertools.chain(*_ASSIGNED):
        if not unicodedata.category(chr(code)).startswith(name):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
