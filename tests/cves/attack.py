"""An attack on another program, as an input of a fuzz target."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Attack:
    """An input that harmed another program; the row of a table, which docs/known-attacks.md shows."""

    ids: str
    """CVE numbers, or who published the fault."""
    product: str
    name: str
    target: str
    """The fuzz target that reads the input."""
    make: Callable[[], bytes]
    answer: str = ""
    """A pattern of the error; empty: the input does nothing, and all that the target asserts holds."""

    @property
    def row(self) -> str:
        """The row of the page."""
        result = "refused" if self.answer else "harmless"
        return f"| {self.ids} | {self.product} | {self.name} | `{self.target}` | {result} |"
