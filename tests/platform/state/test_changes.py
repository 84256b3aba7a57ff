"""Writes of other processes, which are other store objects here, reach the listeners of a store."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from headrace.platform.state.changes import Listeners, followed
from headrace.platform.state.store import open_store
from tests.waiting import WAIT_S

from .kinds import MODEL


def test_a_write_of_another_process_is_reported(lasting_place: str) -> None:
    told = threading.Event()
    with contextlib.closing(open_store(lasting_place)) as store, contextlib.closing(open_store(lasting_place)) as other:
        store.subscribe(told.set)
        with followed(lasting_place, store.listeners):
            assert told.wait(WAIT_S), "following begins with a report, because earlier writes were missed"
            told.clear()
            other.create(MODEL, "one", spec={"a": 1})
            assert told.wait(WAIT_S)


def test_a_lost_session_is_replaced_and_reported(new_database: Callable[[], str]) -> None:
    import psycopg

    place, told = new_database(), threading.Event()
    with contextlib.closing(open_store(place)) as store, contextlib.closing(open_store(place)) as other:
        store.subscribe(told.set)
        with followed(place, store.listeners):
            assert told.wait(WAIT_S)
            told.clear()
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            ending = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
            with contextlib.closing(psycopg.connect(place, autocommit=True)) as connection:
                assert len(connection.execute(ending).fetchall()) >= 1
            assert told.wait(WAIT_S)
            told.clear()
            other.create(MODEL, "one", spec={"a": 1})
            assert told.wait(WAIT_S)


def test_an_error_of_the_database_does_not_end_the_following(tmp_path: Path) -> None:
    """As `PRAGMA data_version` raises it when the disk fails, or the file is locked."""
    place = tmp_path / "state.db"

    class Failing(Listeners):
        num_calls = 0

        def call(self) -> None:
            self.num_calls += 1
            if self.num_calls == 1:
                raise sqlite3.OperationalError("disk I/O error")
            super().call()

    told, listeners = threading.Event(), Failing()
    listeners.add(told.set)
    with contextlib.closing(open_store(place)) as store, followed(place, listeners):
        assert told.wait(WAIT_S), "it goes on, and reports that writes may have been missed"
        told.clear()
        store.create(MODEL, "one", spec={"a": 1})
        assert told.wait(WAIT_S)
    assert not [thread for thread in threading.enumerate() if thread.name == "store-changes"]


def test_a_store_in_memory_has_no_other_process() -> None:
    with contextlib.closing(open_store("sqlite://")) as store, followed("sqlite://", store.listeners):
        store.create(MODEL, "one", spec={"a": 1})


def test_a_write_that_is_not_announced_is_found(new_database: Callable[[], str]) -> None:
    import psycopg

    place, told = new_database(), threading.Event()
    with contextlib.closing(open_store(place)) as store:
        store.subscribe(told.set)
        with followed(place, store.listeners):
            assert told.wait(WAIT_S)
            told.clear()
            with contextlib.closing(psycopg.connect(place, autocommit=True)) as connection:  # as behind a pooler
                connection.execute("UPDATE headrace_store SET revision = revision + 1")
            assert told.wait(WAIT_S)
