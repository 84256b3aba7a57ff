"""A target of fuzzing: a parser, the errors that it declares, and its seeds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headrace.core.errors import HeadraceError

CORPUS = Path(__file__).parent / "corpus"
"""One folder per target: seeds, and `found-*`, the minimised inputs of mended bugs."""


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
        return (*self.make_seeds().values(), *self.corpus.values()) or (b"",)

    @property
    def folder(self) -> Path:
        """The target's part of the corpus."""
        return CORPUS / self.name

    @cached_property
    def corpus(self) -> dict[str, bytes]:
        """The inputs in the repository, by file name."""
        return {file.name: file.read_bytes() for file in sorted(self.folder.glob("*"))}
