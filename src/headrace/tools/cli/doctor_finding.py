"""The result of one check of `headrace doctor`."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "failed", "not installed"]
"""`failed` means that serving cannot work, `not installed` that an optional part is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A line of the report, with advice."""

    name: str
    status: Status
    found: str
    advice: str = ""
    headline: str = ""
    """A part of the verdict."""
    is_detail: bool = False
    """Shown with `-v` only, unless it is a warning or a failure."""
