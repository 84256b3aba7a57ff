"""Human-readable sizes in bytes: parsing and formatting."""

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(raw: str, *, minimum: int = 0) -> int:
    """
    Parse a size in bytes: a number and a unit (KB, MB, GB, TB by 1000; KiB, MiB, GiB, TiB by 1024).

    A single letter is a binary unit, as in docker and java: `2g` is 2 GiB.
    """
    match = _SIZE.fullmatch(raw.strip())
    if match is None:
        raise ValueError(raw)
    amount, letter, binary = match.groups()
    has_unit_byte = raw.strip().lower().endswith("b")
    base = 1024 if binary or not has_unit_byte else 1000
    value = int(float(amount) * base ** _POWERS[letter.lower()])
    if value < minimum:
        raise ValueError(raw)
    return value


def format_size(num_bytes: int) -> str:
    """Format a size in the largest binary unit that gives a short number: `1.5 GiB`."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:g} {unit}" if value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
