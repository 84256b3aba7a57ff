"""The search for the end of a JSON object or array whose text arrives in pieces."""

import re
from typing import Final

_OUTSIDE: Final = re.compile(r'["{}\[\]]|[^\w\s+\-.,:]')
"""A character outside of strings that opens or closes something, or that JSON does not have there."""
_IN_STRING: Final = re.compile(r'["\\]')


class JsonScan:
    """
    Finds the end of a value that begins with a bracket.

    Brackets are counted and strings are skipped; the text is not checked any further.
    """

    def __init__(self, *, closing: str = "}") -> None:
        """Begin in front of the bracket that `closing` closes."""
        self.is_closed = False
        """The value has ended."""
        self.is_stopped = False
        """A character follows that the value cannot have; it is not consumed."""
        self._closing = closing
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    @property
    def lacks_one_bracket(self) -> bool:
        """True if one closing bracket would complete the text so far."""
        return self._depth == 1 and not self._in_string

    def feed(self, text: str, position: int) -> int:
        """Read from a position to the end of the value or of the text; return the position after it."""
        while position < len(text) and not (self.is_closed or self.is_stopped):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            found = (_IN_STRING if self._in_string else _OUTSIDE).search(text, position)
            if found is None:
                return len(text)
            position = found.start() + self._read(found[0])
        return position

    def _read(self, character: str) -> int:
        """Process a character that matters; return how many are consumed."""
        if self._in_string:
            self._is_escaped = character == "\\"
            self._in_string = self._is_escaped
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]" and (self._depth > 1 or character == self._closing):
            self._depth -= 1
            self.is_closed = self._depth == 0
        else:
            self.is_stopped = True
            return 0
        return 1
