"""A target of fuzzing: a parser, the errors that it declares, and its seeds."""

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headrace.core.errors import HeadraceError

CORPUS = Path(__file__).parent / "corpus"
"""One folder per target: seeds, and `found-*`, the minimised inputs of mended bugs."""

_GROWN = Path(__file__).parent / "grown"


def corpus_folder(name: str) -> Path:
    """Return the part of the corpus of a target."""
    return CORPUS / name


def read_corpus(name: str) -> dict[str, bytes]:
    """Return the inputs of a target in the repository, by file name."""
    return {file.name: file.read_bytes() for file in sorted(corpus_folder(name).glob("*"))}


def grown_file(name: str) -> Path:
    """Return the file of the inputs that coverage-guided runs of a target kept."""
    return _GROWN / f"{name}.zip"


def read_grown(name: str) -> dict[str, bytes]:
    """Return the inputs that coverage-guided runs of a target kept, by name."""
    if not grown_file(name).exists():
        return {}
    with zipfile.ZipFile(grown_file(name)) as packed:
        return {item: packed.read(item) for item in packed.namelist()}


class Malformed(Exception):
    """The input is not even a request for this target, such as a head without a method; it does not count."""


@dataclass(frozen=True)
class Target:
    """A parser of what strangers send; any input must end in a result or in a declared error, within the bounds."""

    name: str
    check: Callable[[bytes], object]
    """Parse one input; assertions in it state what must hold for a result."""
    refusals: tuple[type[Exception], ...] = (HeadraceError,)
    """The errors that the parser declares."""
    make_seeds: Callable[[], Mapping[str, bytes]] = dict
    """Seeds that code writes, such as checkpoints; those in the corpus are added."""
    words: tuple[bytes, ...] = ()
    """Pieces of the format that mutations insert."""
    is_json: bool = False
    """Half of the mutations change a JSON value instead of bytes."""
    suite_cases: int = 1000
    """Mutated inputs in the test suite, where all targets together have a minute."""
    limit_s: float = 2.0
    """CPU seconds that one input may take."""

    @cached_property
    def seeds(self) -> tuple[bytes, ...]:
        """The inputs that mutations start from: never empty."""
        return (*self.first_seeds, *self.grown.values()) or (b"",)

    @cached_property
    def first_seeds(self) -> tuple[bytes, ...]:
        """The inputs that people wrote, and those that broke the parser once."""
        return (*self.make_seeds().values(), *self.corpus.values())

    @cached_property
    def grown(self) -> dict[str, bytes]:
        """The inputs that reach edges which the first seeds do not, by name."""
        return read_grown(self.name)

    @cached_property
    def corpus(self) -> dict[str, bytes]:
        """The inputs in the repository, by file name."""
        return read_corpus(self.name)
