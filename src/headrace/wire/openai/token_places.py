"""The places of tokens in the text of an answer."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from headrace.core.generation import Token


class TokenPlaces:
    """Remembers which characters of a text each token added, to count the tokens of a part of it."""

    def __init__(self, start: int) -> None:
        """Create an empty record that begins at character `start`."""
        self._place = start
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, text: str, tokens: Sequence[Token]) -> None:
        """Add the next text and its tokens."""
        for piece, its_tokens in by_token(text, tokens):
            end = self._place + len(piece)
            for _ in its_tokens:
                self._starts.append(self._place)
                self._ends.append(end)
            self._place = end

    def count(self, start: int, stop: int) -> int:
        """
        Return the number of tokens with a character in `start:stop`.

        A token that adds no text, such as the first bytes of a character, counts where the text continues.
        """
        if start >= stop:
            return 0
        first = bisect_left(self._starts, start)
        if first and self._ends[first - 1] > start:
            first -= 1
        return bisect_left(self._starts, stop) - first


def by_token(text: str, tokens: Sequence[Token]) -> Iterator[tuple[str, Sequence[Token]]]:
    """Yield the part of the text that each token adds: none for a hidden one and one that a stop string cut off."""
    place = 0
    for token in tokens:
        end = place + len(token.text) if text.startswith(token.text, place) else place
        yield text[place:end], (token,)
        place = end
    if place < len(text):
        yield text[place:], ()
