"""
Typed records, in which the API handlers, the reconciler and the gateway share state.

`spec` is the desired state and `status` the observed one. API handlers write specs, the reconciler writes statuses,
the gateway reads routes; they meet only in the store. The module that owns a resource declares its kind:

    class AlarmSpec(RecordPart, frozen=True, kw_only=True):
        threshold: float
        period_s: float = 60.0

    class AlarmStatus(RecordPart, frozen=True, kw_only=True):
        state: str = "INSUFFICIENT_DATA"

    def _period_in_seconds(spec: Json, status: Json) -> tuple[Json, Json]:  # version 1 -> 2; must not change its input
        return {**without(spec, "Period"), "period_s": spec["Period"]}, status

    ALARM: Final = Kind("alarm", AlarmSpec, AlarmStatus, migrations=(_period_in_seconds,))

`store.get(ALARM, name)` then returns a `Record[AlarmSpec, AlarmStatus]`, an `Unreadable` or None. Cross-field rules go
into `__post_init__`: a ValueError raised there makes the record unreadable too.

To change the stored form of a kind, change the structs and append a migration, which makes a new version of the kind. A
record is migrated when it is read, and written in the new form with its next update.
See docs/decisions/0019-typed-records.md.
"""

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

Json = dict[str, Any]

SpecT_co = TypeVar("SpecT_co", covariant=True)
StatusT_co = TypeVar("StatusT_co", covariant=True)
SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")
PartT = TypeVar("PartT")

Migration = Callable[[Json, Json], tuple[Json, Json]]
"""Converts the spec and the status of one schema version to the next. Pure."""

_DESCRIBING: Final = threading.Lock()
_described: set[type] = set()
"""Types that msgspec has described."""
_MALFORMED: Final = (LookupError, TypeError, ValueError, AttributeError)
"""Raised when JSON of an unexpected form is read; msgspec's ValidationError is a ValueError."""


class RecordPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Base class of all structs in a record. Unknown fields are refused, because rewriting the record would drop them.

    Subclasses repeat `frozen` and `kw_only`: msgspec and type checkers do not inherit them.
    """


class NoStatus(RecordPart, frozen=True, kw_only=True):
    """The status of a kind that has none."""


@dataclass(frozen=True, eq=False, slots=True)
class Kind(Generic[SpecT_co, StatusT_co]):
    """A kind of record: the types of spec and status, and the migrations from older schema versions."""

    name: str
    """The name in the database; it never changes."""
    spec: type[SpecT_co]
    status: type[StatusT_co]
    """All its fields need defaults: a new record has the status `status()`."""
    migrations: tuple[Migration, ...] = ()
    """The first converts version `oldest` to the next one."""
    oldest: int = 1
    """The oldest schema version that is read."""

    @property
    def version(self) -> int:
        """The current schema version, in which records are written."""
        return self.oldest + len(self.migrations)

    def __str__(self) -> str:
        return self.name


AnyKind = Kind[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """The fields that readable and unreadable records share."""

    name: str
    uid: str
    """Unique forever; (kind, name) is unique among existing records only."""
    revision: int
    """Grows with every write to the store; a write names the revision that it read and conflicts with a later one."""
    tags: dict[str, str] = field(default_factory=dict)
    created_s: float
    """Seconds since 1970."""
    modified_s: float
    deleting_s: float | None = None
    """Time at which deletion was requested; the record's owner removes it after cleaning up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(StoredRecord, Generic[SpecT_co, StatusT_co]):
    """A record whose spec and status were decoded."""

    kind: Kind[SpecT_co, StatusT_co]
    spec: SpecT_co
    status: StatusT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable(StoredRecord):
    """
    A record that cannot be decoded: another version of Headrace wrote it, or it was edited.

    It can be listed, tagged and deleted. Its spec and status are never rewritten.
    """

    kind: AnyKind
    reason: str
    """A short description of the error."""
    is_newer: bool = False
    """A newer version of Headrace wrote it, and will be able to read it again."""
    raw_spec: Any = field(default=None, repr=False)
    """The JSON of the spec, which may contain secrets."""

    def salvage(self, part: type[PartT]) -> PartT | None:
        """Return those fields of the spec that `part` declares, or None if they are invalid."""
        try:
            return msgspec.convert(self.raw_spec, part)
        except msgspec.ValidationError:
            return None


def readable(records: Iterable[Record[SpecT, StatusT] | Unreadable]) -> list[Record[SpecT, StatusT]]:
    """Return only the decoded records."""
    return [record for record in records if isinstance(record, Record)]


class Conflict(Exception):
    """Raised for a write to a record that was written or removed since it was read: read it and decide again."""


class LastRecord(Exception):
    """Raised instead of removing the only record of a kind that must keep one."""


class Fenced(Conflict):
    """Raised for a write by a leader whose term is over: another platform leads, and has made decisions since."""


MAX_WRITE_TRIES: Final = 10
"""Attempts of a read-decide-write cycle that ends in a `Conflict` each time."""


class AlreadyExists(Exception):
    """Raised for a new record whose kind already has a record of that name."""


def encode_part(part: object) -> str:
    """Return a spec or a status as JSON text."""
    return json.dumps(msgspec.to_builtins(part, str_keys=True))


def copy_part(part: PartT, part_type: type[PartT]) -> PartT:
    """Return a copy of the part made through JSON, so that later changes by the caller do not leak in."""
    return msgspec.convert(json.loads(encode_part(part)), part_type, str_keys=True)


def decode_record(
    kind: Kind[SpecT, StatusT], *, version: int, spec: str, status: str, envelope: Mapping[str, Any]
) -> Record[SpecT, StatusT] | Unreadable:
    """Decode a stored record, whose spec and status are JSON texts of a schema version."""
    raw_spec: Any = None
    if version > kind.version:
        reason = f"its schema version is {version}, this Headrace reads versions up to {kind.version}"
        with suppress(ValueError):
            raw_spec = json.loads(spec)
        return Unreadable(kind=kind, reason=reason, is_newer=True, raw_spec=raw_spec, **envelope)
    try:
        raw_spec, raw_status = json.loads(spec), json.loads(status)
        if version < kind.oldest:
            raise ValueError(f"its schema version is {version}, this Headrace reads versions from {kind.oldest} on")
        for migrate in kind.migrations[version - kind.oldest :]:
            raw_spec, raw_status = migrate(raw_spec, raw_status)
        return Record(
            kind=kind,
            spec=_convert(raw_spec, kind.spec),
            status=_convert(raw_status, kind.status),
            **envelope,
        )
    except _MALFORMED as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        return Unreadable(kind=kind, reason=reason, raw_spec=raw_spec, **envelope)


def _convert(raw: Any, type_: type[PartT]) -> PartT:
    """Convert to a type; msgspec 0.22 segfaults if two threads build its description of a dataclass at once."""
    if type_ in _described:
        return msgspec.convert(raw, type_, str_keys=True)
    with _DESCRIBING:
        converted = msgspec.convert(raw, type_, str_keys=True)
        _described.add(type_)
    return converted
