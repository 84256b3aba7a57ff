"""A finding of `headrace doctor`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check, with advice."""

    name: str
    status: Literal["ok", "warning", "failed"]
    """`failed` means that serving cannot work."""
    found: str
    advice: str = ""
