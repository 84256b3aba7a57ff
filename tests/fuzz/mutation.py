"""
Seeded mutation of inputs: bytes, numbers, splices, words of the format, and values of JSON documents.

Hypothesis generates the inputs of the other property tests; it takes a millisecond for each, 20 times as long as most
parsers here. These mutations take a few microseconds, and a case follows from seed, target and number alone.
"""

import json
import random
import struct
from collections.abc import Callable, Sequence

from tests.fuzz.target import Target

_NUMBERS = (0, 1, 2, 3, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_LAYOUTS = ("<B", "<H", "<I", "<Q", ">H", ">I", ">Q")
_WORDS = (
    b"\x00",
    b"\r\n",
    b"\n",
    b"\xff",
    b"%00",
    b"\xf0\x9f\xa6\x8a",
    b"-1",
    b"1e400",
    b"9" * 25,
    b"9" * 5000,
    b"null",
    b"[" * 300,
)
_MAX_BYTES = 1 << 20
_SCALARS = (
    *(None, True, False, 0, 1, -1, 0.5, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 1e308, -1e-320),
    *("", "a", "\x00", "\ud800", "🦊", "é" * 300, "nan", "1", [], {}, [[]], {"": None}),
)
_MAX_NODES = 2000


def case(target: Target, seed: int, number: int) -> bytes:
    """Return a mutated input; the same for the same arguments and corpus."""
    rng = random.Random(f"{seed}/{target.name}/{number}")
    data = rng.choice(target.seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = mutated(data, target, rng)[:_MAX_BYTES]
    return data


def mutated(data: bytes, target: Target, rng: random.Random) -> bytes:
    """Return an input with one change, of its bytes or of a value if it is JSON."""
    if target.is_json and rng.random() < 0.6:
        changed = _mutated_json(data, target, rng)
        if changed is not None:
            return changed
    return rng.choice(_OPERATIONS)(data, target, rng)


def _flip(data: bytes, _target: Target, rng: random.Random) -> bytes:
    if not data:
        return b"\x00"
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set_byte(data: bytes, _target: Target, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(1) + data[at + 1 :]


def _set_number(data: bytes, _target: Target, rng: random.Random) -> bytes:
    layout = rng.choice(_LAYOUTS)
    size = struct.calcsize(layout)
    at = rng.randrange(max(1, len(data) - size + 1))
    number = rng.choice(_NUMBERS) % (1 << 8 * size)
    return data[:at] + struct.pack(layout, number) + data[at + size :]


def _cut(data: bytes, _target: Target, rng: random.Random) -> bytes:
    first, last = _span(data, rng)
    return data[:first] + data[last:]


def _truncate(data: bytes, _target: Target, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _repeat(data: bytes, _target: Target, rng: random.Random) -> bytes:
    first, last = _span(data, rng)
    return data[:last] + data[first:last] * rng.choice((1, 1, 2, 10, 100)) + data[last:]


def _splice(data: bytes, target: Target, rng: random.Random) -> bytes:
    other = rng.choice(target.seeds)
    first, last = _span(other, rng)
    at = rng.randrange(len(data) + 1)
    return data[:at] + other[first:last] + data[at + rng.randrange(2) * (last - first) :]


def _insert_word(data: bytes, target: Target, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    word = rng.choice(target.words) if target.words and rng.random() < 0.7 else rng.choice(_WORDS)
    return data[:at] + word + data[at + rng.choice((0, 0, 1, len(word))) :]


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    first = rng.randrange(len(data) + 1)
    return first, min(len(data), first + rng.choice((1, 2, 4, 8, 16, 64, 256)))


_OPERATIONS: tuple[Callable[[bytes, Target, random.Random], bytes], ...] = (
    *(_flip, _set_byte, _set_number, _cut, _truncate),
    *(_repeat, _splice, _insert_word, _insert_word),
)


def _mutated_json(data: bytes, target: Target, rng: random.Random) -> bytes | None:
    """Change one value of a document; None if it is not JSON."""
    try:
        document = json.loads(data)
        places = _places(document)
        if not places:
            return _dumped(rng.choice(_SCALARS))
        parent, key = rng.choice(places)
        _change(parent, key, document, target, rng)
        return _dumped(document)
    except (ValueError, RecursionError, UnicodeDecodeError):
        return None


def _change(parent: dict | list, key: object, document: object, target: Target, rng: random.Random) -> None:
    kind = rng.randrange(7)
    if kind == 0:
        del parent[key]
    elif kind == 1:
        other, place = rng.choice(_places(document))
        parent[key] = json.loads(json.dumps(other[place]))
    elif kind == 2:
        parent[key] = [parent[key]] * rng.choice((1, 2, 50))
    elif kind == 3 and isinstance(parent, dict):
        parent[_name(target, rng)] = parent[key]
    elif kind == 4:
        parent[key] = _foreign(target, rng)
    else:
        parent[key] = rng.choice(_SCALARS)


def _foreign(target: Target, rng: random.Random) -> object:
    """Return a value of another seed."""
    try:
        other = json.loads(rng.choice(target.seeds))
    except (ValueError, RecursionError, UnicodeDecodeError):
        return None
    places = _places(other)
    if not places:
        return other
    parent, key = rng.choice(places)
    return parent[key]


def _name(target: Target, rng: random.Random) -> str:
    return rng.choice(target.words).decode("latin-1") if target.words else rng.choice(("type", "", "name", "\x00"))


def _places(document: object) -> Sequence[tuple[dict | list, object]]:
    """Return where values are: containers with a key or an index."""
    found: list[tuple[dict | list, object]] = []
    pending = [document]
    while pending and len(found) < _MAX_NODES:
        value = pending.pop()
        if isinstance(value, dict):
            found += [(value, key) for key in value]
            pending += value.values()
        elif isinstance(value, list):
            found += [(value, index) for index in range(len(value))]
            pending += value
    return found[:_MAX_NODES]


def _dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", errors="surrogatepass")
