"""Suggestions for unknown names: the known name that a misspelt or shortened one most likely means."""

from collections.abc import Iterable
from difflib import get_close_matches

_MIN_PREFIX_CHARS = 6


def near_name(word: str, known: Iterable[str], *, cutoff: float = 0.75) -> str | None:
    """
    Return the known name nearest to `word`, or None.

    Case and separators are ignored. A name that extends `word` (`max_rolling_batch_size` for `max_rolling_batch`) is
    preferred to a similar one; of several the first in the order of `known` wins. Pass the names without a common
    prefix, which would make all of them similar.
    """
    names: dict[str, str] = {}
    for name in known:
        names.setdefault(_plain(name), name)
    plain = _plain(word)
    if plain in names:
        return names[plain]
    if len(plain) >= _MIN_PREFIX_CHARS:
        shortened = word.lower()
        for name in names.values():
            if name.lower().startswith((f"{shortened}_", f"{shortened}-", f"{shortened}.")):
                return name
    near = get_close_matches(plain, names, n=1, cutoff=cutoff)
    return names[near[0]] if near else None


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character not in "_-.")
