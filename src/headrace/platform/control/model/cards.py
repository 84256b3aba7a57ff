"""Model cards: documents about models, in versions."""

from typing import Final

from headrace.platform.state.records import Json, Kind, NoStatus, RecordPart

MAX_VERSIONS: Final = 100
"""A version has up to 100,000 characters, and all of them are in one record."""


class CardVersion(RecordPart, frozen=True, kw_only=True):
    content: str
    status: str
    created_s: float
    modified_s: float


class CardSpec(RecordPart, frozen=True, kw_only=True):
    versions: list[CardVersion]
    """Oldest first; the first has the number 1."""
    security: Json | None = None
    """`SecurityConfig`."""


MODEL_CARD: Final = Kind("model-card", CardSpec, NoStatus)
