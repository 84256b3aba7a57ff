"""
CloudWatch's filter patterns for lines of text: words, "quoted words", ?alternatives and -exclusions. Pure.

Source: CloudWatch Logs user guide, "Filter pattern syntax". Patterns for JSON (`{ ... }`), for columns (`[ ... ]`) and
regular expressions (`%...%`) are refused by name rather than misinterpreted.
"""

import re
from dataclasses import dataclass

from headrace.wire.aws.errors import AwsError

_TERM = re.compile(r'(?P<sign>[?-]?)(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"]+))')


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    """A parsed filter pattern for log lines."""

    all_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()

    def fits(self, line: str) -> bool:
        """Return whether a line matches; case matters."""
        if any(term in line for term in self.none_of) or not all(term in line for term in self.all_of):
            return False
        return not self.any_of or bool(self.all_of) or any(term in line for term in self.any_of)


def read_pattern(pattern: str) -> LineFilter:
    """
    Parse a `filterPattern`.

    Raises:
        AwsError: InvalidParameterException, for an unsupported kind of pattern.
    """
    text = pattern.strip()
    if text[:1] in ("{", "[", "%"):
        raise AwsError(
            "InvalidParameterException",
            f'Invalid filter pattern {pattern!r}: only words, "quoted words", ?alternatives and -exclusions are '
            "supported by Headrace.",
        )
    terms: dict[str, list[str]] = {"": [], "?": [], "-": []}
    for found in _TERM.finditer(text):
        quoted = found["quoted"]
        word = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else found["plain"]
        if word:
            terms[found["sign"]].append(word)
    return LineFilter(all_of=tuple(terms[""]), any_of=tuple(terms["?"]), none_of=tuple(terms["-"]))
