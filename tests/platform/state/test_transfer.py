"""Copies of all records between databases of both kinds."""

import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from headrace.core.errors import SettingsError
from headrace.platform.state.coordination import Coordination, Member
from headrace.platform.state.records import Fenced
from headrace.platform.state.store import Store, open_store
from headrace.platform.state.transfer import read_copy, write_copy

from .kinds import ACCESS_KEY, ENDPOINT, MODEL

HERE = Member(id="here", url="http://127.0.0.1:7450", host="host", data_dir="/data of here", version="1")


def records_of(store: Store) -> list[Any]:
    return [record for kind in (MODEL, ENDPOINT, ACCESS_KEY) for record in store.list(kind)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    place = tmp_path / "source.db"
    with contextlib.closing(open_store(place)) as store:
        store.create(MODEL, "m", spec={"text": "ünïcödé\0"}, tags={"team": "x"})
        store.update(store.create(ENDPOINT, "e", spec={}), status={"a": 1}, is_deleting=True)
        store.create(ACCESS_KEY, "odd", spec={})
        store.begin_term(7)
    with contextlib.closing(sqlite3.connect(place)) as connection, connection:
        connection.execute("UPDATE headrace_records SET spec = 'not JSON' WHERE name = 'odd'")
    return place


def test_every_record_arrives_unchanged(source: Path, lasting_place: str) -> None:
    copy = read_copy(source)
    write_copy(lasting_place, copy, is_replacing=False)
    with contextlib.closing(open_store(source)) as old, contextlib.closing(open_store(lasting_place)) as new:
        assert records_of(new) == records_of(old)
        assert new.revision() > old.revision()
    assert read_copy(lasting_place).rows == copy.rows


def test_revisions_and_terms_go_on_growing(source: Path, lasting_place: str) -> None:
    copy = read_copy(source)
    with contextlib.closing(open_store(lasting_place)) as store:
        for number in range(10):
            store.create(MODEL, f"m{number}", spec={})
        store.begin_term(9)
        leader = store.fenced(9)
        with pytest.raises(SettingsError, match=r"has 10 records.*--replace"):
            write_copy(lasting_place, copy, is_replacing=False)
        write_copy(lasting_place, copy, is_replacing=True)
        assert [record.name for record in records_of(store)] == ["m", "e", "odd"]
        assert store.revision() > 10
        assert store.term() > 9
        with pytest.raises(Fenced):
            leader.create(MODEL, "late", spec={})


@pytest.mark.usefixtures("long_leases")
def test_a_database_with_a_live_platform_is_refused(source: Path, new_database) -> None:
    place = new_database()
    member = Coordination(place, HERE)
    with contextlib.closing(open_store(place)), contextlib.closing(member):
        member.open(term=0)
        member.heartbeat()
        with pytest.raises(SettingsError, match=r"http://127\.0\.0\.1:7450.*--data-dir '/data of here'"):
            write_copy(place, read_copy(source), is_replacing=True)
        assert read_copy(place).rows == ()
        member.leave()
        write_copy(place, read_copy(source), is_replacing=True)
        assert member.heartbeat().term > read_copy(place).term, "the next leader's writes are not fenced"


def test_the_copy_is_that_of_one_moment(lasting_place: str) -> None:
    is_over = threading.Event()
    with contextlib.closing(open_store(lasting_place)) as store:
        store.create(MODEL, "first", spec={})

        def write() -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                store.create(MODEL, f"m{number}", spec={})

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(10):
                copy = read_copy(lasting_place)
                assert len(copy.rows) == copy.rows[-1].revision == copy.revision
        finally:
            is_over.set()
            writer.join()


@pytest.mark.parametrize("version", [2, 99], ids=["older", "newer"])
def test_tables_of_another_version_are_refused(lasting_place: str, version: int) -> None:
    with contextlib.closing(open_store(lasting_place)) as store, store._engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE headrace_store SET schema_version = {version}"))
    for use in (read_copy, open_store):
        with pytest.raises(SettingsError, match=f"schema version {version}; this Headrace expects version 3"):
            use(lasting_place)


def test_what_is_no_store_is_named_and_not_created(tmp_path: Path, new_database) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        read_copy(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(SettingsError, match="does not exist"):
        read_copy(new_database())
    (tmp_path / "text.db").write_text("not a database, but long enough to be read as the header of one" * 20)
    with pytest.raises(SettingsError, match="cannot be read: file is not a database"):
        read_copy(tmp_path / "text.db")
