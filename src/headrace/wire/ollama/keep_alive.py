"""
`keep_alive`, the time for which Ollama keeps a model loaded. Here models stay loaded, so the value is only checked.

Source: Ollama `api/types.go` (Duration): seconds, or a duration of Go such as `5m`; a negative one has no end.
"""

import re

from headrace.core.errors import InvalidRequest

_DURATION = re.compile(r"[-+]?(?:0|(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|ms|s|m|h))+)", re.ASCII)
_NUMBER_ABOVE_ZERO = re.compile(r"[1-9]")


def asks_to_unload(keep_alive: float | str | None) -> bool:
    """
    Return whether the value is zero, which unloads the model after the answer.

    Raises:
        InvalidRequest: the value is not a duration.
    """
    if keep_alive is None or isinstance(keep_alive, float | int):
        return keep_alive == 0
    if keep_alive == "":
        return False
    if not _DURATION.fullmatch(keep_alive):
        text = (
            f"`keep_alive` is '{keep_alive[:80]}'; expected seconds as a number, or a duration such as '5m' or '-1s'."
        )
        raise InvalidRequest(text, param="keep_alive")
    return _NUMBER_ABOVE_ZERO.search(keep_alive) is None
