"""
Stop strings in text that arrives in pieces.

`StopMatcher` releases text except for a suffix that could become a stop string, so that a stop string is never shown
and no text is held back longer than necessary. The stop string that is complete first wins; of several that end at the
same character, the longest.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string found at `start:stop` of the text, counted from its beginning."""

    string: str
    start: int
    stop: int


class StopMatcher:
    """Finds stop strings in the text of one answer."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._first_chars = frozenset(s[0] for s in strings)
        self._reach = max(len(s) for s in strings) - 1
        self._held = ""
        self.num_released = 0
        """Characters at the beginning of the answer that are safe to show."""

    def push(self, text: str) -> StopMatch | None:
        """Add the next piece; return the match if it completes a stop string. Do not push more after a match."""
        held = self._held + text
        match = self._find(held)
        if match is not None:
            return match
        kept = self._kept(held)
        self.num_released += len(held) - kept
        self._held = held[len(held) - kept :]
        return None

    def _find(self, text: str) -> StopMatch | None:
        best: StopMatch | None = None
        for string in self._strings:
            start = text.find(string)
            if start < 0:
                continue
            stop = start + len(string)
            if best is None or (stop, start) < (best.stop, best.start):
                best = StopMatch(string, start, stop)
        if best is None:
            return None
        return StopMatch(best.string, best.start + self.num_released, best.stop + self.num_released)

    def _kept(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that begins a stop string."""
        for start in range(max(0, len(text) - self._reach), len(text)):
            if text[start] in self._first_chars:
                end = text[start:]
                if any(string.startswith(end) for string in self._strings):
                    return len(end)
        return 0
