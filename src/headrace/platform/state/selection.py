"""
Lists of records by filters, order and last key, all of which the database evaluates.

A list operation reads no more than its page needs: decoding all records of a kind costs several times their size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from headrace.platform.state.records import AnyKind
from headrace.platform.state.schema import RECORDS

Order = Literal["created", "name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A record without its contents."""

    name: str
    created_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Filters, order and beginning of a list of records."""

    names: Sequence[str] | None = None
    """None: any name."""
    name_prefix: str = ""
    name_part: str = ""
    """A part of the name, ignoring case."""
    created_after_s: float | None = None
    created_before_s: float | None = None
    after_revision: int = 0
    """Only records that were written after the store had this revision."""
    order: Order = "created"
    """`created`: by time of creation, then by name."""
    is_descending: bool = False
    after: Entry | None = None
    """The last record before those that are read."""


ALL = Selection()


def _name_column(dialect: str) -> "sa.ColumnElement[str]":
    """Return the column of names, which is compared by code points as in Python, whatever the database's locale."""
    return RECORDS.c.name.collate("C") if dialect == "postgresql" else RECORDS.c.name


def statement(
    columns: Sequence["sa.ColumnElement[Any]"], kind: AnyKind, selection: Selection, *, dialect: str, limit: int
) -> "sa.Select[Any] | None":
    """Return the query for the first records of a selection; None if no record can have one of its texts."""
    if not all(map(is_storable, (*(selection.names or ()), selection.name_prefix, selection.name_part))):
        return None
    order = [_name_column(dialect)] if selection.order == "name" else [RECORDS.c.created_s, _name_column(dialect)]
    ordered = [column.desc() if selection.is_descending else column for column in order]
    return sa.select(*columns).where(*_conditions(kind, selection, dialect)).order_by(*ordered).limit(limit)


def is_storable(text: str) -> bool:
    """Return whether a database can hold a text: PostgreSQL has no NUL, and neither has lone surrogates."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _conditions(kind: AnyKind, selection: Selection, dialect: str) -> list["sa.ColumnElement[bool]"]:
    name, created = RECORDS.c.name, RECORDS.c.created_s
    conditions = [RECORDS.c.kind == kind.name]
    if selection.names is not None:
        conditions.append(name.in_(selection.names))
    if prefix := selection.name_prefix:
        conditions.append(sa.func.substr(name, 1, len(prefix)) == prefix)
    if selection.name_part:
        conditions.append(sa.func.lower(name).contains(selection.name_part.lower(), autoescape=True))
    if selection.created_after_s is not None:
        conditions.append(created > selection.created_after_s)
    if selection.created_before_s is not None:
        conditions.append(created < selection.created_before_s)
    if selection.after_revision:
        conditions.append(RECORDS.c.revision > selection.after_revision)
    if (last := selection.after) is not None:
        place: sa.ColumnElement[Any] = _name_column(dialect)
        key: Any = last.name
        if selection.order == "created":
            place, key = sa.tuple_(created, place), sa.tuple_(sa.literal(last.created_s), sa.literal(last.name))
        conditions.append(place < key if selection.is_descending else place > key)
    return conditions
