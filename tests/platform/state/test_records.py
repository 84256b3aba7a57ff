"""Typed records: decoding, migrations, refusals and copies."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from headrace.platform.state.records import Json, Kind, NoStatus, Record, RecordPart, Unreadable
from headrace.platform.state.store import Store


class Old(RecordPart, frozen=True, kw_only=True):
    Seconds: float


class Alarm(RecordPart, frozen=True, kw_only=True):
    period_ms: int
    label: str = ""

    def __post_init__(self) -> None:
        if self.period_ms < 1:
            raise ValueError(f"period_ms is {self.period_ms}; expected at least 1.")


class AlarmStatus(RecordPart, frozen=True, kw_only=True):
    state: str = "OK"
    counts: dict[int, int] = msgspec.field(default_factory=dict)


class Owner(RecordPart, frozen=True, kw_only=True, forbid_unknown_fields=False):
    label: str


def to_milliseconds(spec: Json, status: Json) -> tuple[Json, Json]:
    return {"period_ms": round(spec["Seconds"] * 1000)}, status


def with_label(spec: Json, status: Json) -> tuple[Json, Json]:
    return {**spec, "label": "migrated"}, {**status, "state": "ALARM"}


ALARM_1: Kind[Old, NoStatus] = Kind("alarm", Old, NoStatus)
ALARM: Kind[Alarm, AlarmStatus] = Kind("alarm", Alarm, AlarmStatus, migrations=(to_milliseconds, with_label))


def stored(store: Store, name: str = "a") -> tuple[str, str, int]:
    """The columns as they are in the database."""
    with store._engine.connect() as connection:
        query = sa.text("SELECT spec, status, schema_version FROM headrace_records WHERE name = :name")
        row = connection.execute(query, {"name": name}).one()
    return row.spec, row.status, row.schema_version


def test_parts_are_read_back_as_their_types(store) -> None:
    made = store.create(ALARM, "a", spec=Alarm(period_ms=5), status=AlarmStatus(counts={1: 2}))
    assert made == store.get(ALARM, "a")
    assert made.status == AlarmStatus(state="OK", counts={1: 2})
    assert store.create(ALARM, "b", spec=Alarm(period_ms=5)).status == AlarmStatus()


def test_a_record_of_an_old_version_is_migrated_step_by_step(store) -> None:
    store.create(ALARM_1, "a", spec=Old(Seconds=1.5))
    found = store.get(ALARM, "a")
    assert isinstance(found, Record)
    assert (found.spec, found.status) == (Alarm(period_ms=1500, label="migrated"), AlarmStatus(state="ALARM"))


def test_a_migrated_record_is_written_in_the_new_form_with_its_next_update_only(store) -> None:
    store.create(ALARM_1, "a", spec=Old(Seconds=1.5))
    before = store.revision()
    (found,) = store.list(ALARM)
    assert (store.revision(), stored(store)[2]) == (before, 1)
    store.update(found, status=AlarmStatus(state="OK"))
    spec, _, version = stored(store)
    assert ('"period_ms": 1500' in spec, version) == (True, 3)
    assert store.get(ALARM, "a").spec == found.spec


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("[]", "Expected `object`"),
        ("not JSON", "JSONDecodeError"),
        ('{"period_ms": "5"}', "Expected `int`"),
        ('{"period_ms": 0}', "expected at least 1"),
        ('{"period_ms": 5, "colour": "red"}', "unknown field `colour`"),
    ],
)
def test_a_record_that_cannot_be_decoded_is_an_unreadable_value(store, spec, reason) -> None:
    store.create(ALARM, "sound", spec=Alarm(period_ms=5))
    store.create(ALARM, "a", spec=Alarm(period_ms=5))
    overwrite(store, spec=spec)
    found = {record.name: record for record in store.list(ALARM)}
    assert isinstance(found["sound"], Record)
    assert isinstance(found["a"], Unreadable)
    assert reason in found["a"].reason
    assert found["a"].is_newer is False


def test_a_migration_that_fails_makes_only_its_record_unreadable(store) -> None:
    store.create(ALARM_1, "a", spec=Old(Seconds=1.0))
    overwrite(store, spec="{}")
    found = store.get(ALARM, "a")
    assert isinstance(found, Unreadable)
    assert "Seconds" in found.reason


def test_an_unreadable_record_is_tagged_marked_and_removed_but_its_parts_stay(store) -> None:
    store.create(ALARM, "a", spec=Alarm(period_ms=5))
    overwrite(store, spec='{"label": "x", "more": 1}')
    before = stored(store)
    found = store.get(ALARM, "a")
    written = store.update(found, tags={"team": "x"}, is_deleting=True)
    assert isinstance(written, Unreadable)
    assert written.deleting_s is not None
    assert (store.get(ALARM, "a"), stored(store)) == (written, before)
    store.remove(written)
    assert store.get(ALARM, "a") is None


def test_a_record_of_a_newer_version_is_kept_as_it_is_for_the_headrace_that_wrote_it(store) -> None:
    made = store.create(ALARM, "a", spec=Alarm(period_ms=5))
    found = store.get(ALARM_1, "a")
    assert isinstance(found, Unreadable)
    assert (found.is_newer, found.reason) == (True, "its schema version is 3, this Headrace reads versions up to 1")
    store.update(found, tags={"seen": "by an older version"})
    again = store.get(ALARM, "a")
    assert isinstance(again, Record)
    assert (again.spec, again.status) == (made.spec, made.status)


def test_sound_fields_are_salvaged_from_an_unreadable_record(store) -> None:
    store.create(ALARM, "a", spec=Alarm(period_ms=5))
    overwrite(store, spec='{"period_ms": null, "label": "x"}')
    assert store.get(ALARM, "a").salvage(Owner) == Owner(label="x")
    overwrite(store, spec='{"label": 7}')
    assert store.get(ALARM, "a").salvage(Owner) is None


def test_a_record_older_than_what_is_read_is_unreadable(store) -> None:
    store.create(ALARM, "a", spec=Alarm(period_ms=5))
    overwrite(store, schema_version=1)
    found = store.get(replace(ALARM, migrations=(), oldest=3), "a")
    assert "its schema version is 1, this Headrace reads versions from 3 on" in found.reason
    assert found.is_newer is False


def overwrite(store: Store, **columns: Any) -> None:
    """Edit the record `a` behind the store's back."""
    with store._engine.begin() as connection:
        for name, value in columns.items():
            query = sa.text(f"UPDATE headrace_records SET {name} = :value WHERE name = 'a'")
            connection.execute(query, {"value": value})
