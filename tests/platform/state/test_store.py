"""The contract of stores, on each kind of database."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.errors import SettingsError, Unavailable
from headrace.platform.state.records import AlreadyExists, Conflict, LastRecord, Record
from headrace.platform.state.selection import Entry, Selection
from headrace.platform.state.store import open_store
from tests.platform.state.kinds import ACCESS_KEY, ENDPOINT, MODEL, ROUTE, WORKER

NASTY = {"text": "ünïcödé \ud800 \x00 'quoted' \"\\", "deep": {"list": [1, 2.5, None, True, {"": []}]}}


def test_a_created_record_is_read_back(store, clock) -> None:
    made = store.create(MODEL, "a", spec=NASTY, status={"seen": 1}, tags={"team": "x"})
    assert store.get(MODEL, "a") == made
    assert (made.kind, made.name, made.spec, made.status, made.tags) == (
        MODEL,
        "a",
        NASTY,
        {"seen": 1},
        {"team": "x"},
    )
    assert (made.created_s, made.modified_s, made.deleting_s) == (clock.now_s, clock.now_s, None)


def test_later_changes_by_the_caller_do_not_reach_the_record(store) -> None:
    spec = {"list": [1]}
    made = store.create(MODEL, "a", spec=spec)
    spec["list"].append(2)
    assert made.spec == {"list": [1]}


def test_an_unknown_name_is_none(store) -> None:
    assert store.get(ENDPOINT, "a") is None
    assert list(store.list(ENDPOINT)) == []


def test_names_are_unique_for_a_kind_only_and_case_counts(store) -> None:
    store.create(MODEL, "a", spec={})
    store.create(ENDPOINT, "a", spec={})
    store.create(MODEL, "A", spec={})
    before = store.revision()
    with pytest.raises(AlreadyExists, match="'a'"):
        store.create(MODEL, "a", spec={})
    assert store.revision() == before


def test_a_name_may_be_reused_with_another_uid(store) -> None:
    first = store.create(MODEL, "a", spec={})
    store.remove(first)
    second = store.create(MODEL, "a", spec={})
    assert second.uid != first.uid
    assert second.revision > first.revision


def test_records_are_listed_by_creation_then_name(store, clock) -> None:
    for name, now_s in (("c", 3.0), ("b", 2.0), ("d", 1.0), ("a", 2.0)):
        clock.now_s = now_s
        store.create(WORKER, name, spec={})
    store.create(ROUTE, "other", spec={})
    assert [record.name for record in store.list(WORKER)] == ["d", "a", "b", "c"]


def test_an_update_writes_the_given_parts_and_keeps_the_others(store, clock) -> None:
    made = store.create(ENDPOINT, "a", spec={"x": 1}, status={"y": 1}, tags={"z": "1"})
    clock.now_s += 5
    written = store.update(made, status={"y": 2})
    assert written == store.get(ENDPOINT, "a")
    assert (written.spec, written.status, written.tags) == ({"x": 1}, {"y": 2}, {"z": "1"})
    assert (written.created_s, written.modified_s) == (made.created_s, clock.now_s)
    emptied = store.update(written, tags={})
    assert emptied.tags == {}


def test_deleting_is_set_once_and_for_all(store, clock) -> None:
    made = store.create(ENDPOINT, "a", spec={})
    clock.now_s += 1
    deleting = store.update(made, is_deleting=True)
    since_s = clock.now_s
    clock.now_s += 1
    later = store.update(deleting, status={"s": 1}, is_deleting=True)
    assert (deleting.deleting_s, later.deleting_s) == (since_s, since_s)


def test_a_write_on_an_old_revision_conflicts_and_changes_nothing(store) -> None:
    old = store.create(ENDPOINT, "a", spec={"v": 1})
    new = store.update(old, spec={"v": 2})
    with pytest.raises(Conflict):
        store.update(old, spec={"v": 3})
    with pytest.raises(Conflict):
        store.remove(old)
    assert store.get(ENDPOINT, "a") == new


def test_a_removed_record_cannot_be_written_and_is_removed_only_once(store) -> None:
    made = store.create(ENDPOINT, "a", spec={})
    store.remove(made)
    before = store.revision()
    store.remove(made)
    assert store.revision() == before
    with pytest.raises(Conflict):
        store.update(made, spec={"v": 1})
    assert store.get(ENDPOINT, "a") is None


def test_every_write_has_a_larger_revision_and_reads_have_none(store) -> None:
    seen = [store.revision()]
    made = store.create(MODEL, "a", spec={})
    seen.append(made.revision)
    written = store.update(made, spec={"x": 1})
    seen.append(written.revision)
    store.remove(written)
    seen.append(store.revision())
    store.list(MODEL)
    assert seen == sorted(set(seen))
    assert store.revision() == seen[-1]


def test_writing_unchanged_values_is_no_write(store, clock) -> None:
    made = store.create(WORKER, "a", spec={"x": [1]}, status={"y": 1})
    told = []
    store.subscribe(lambda: told.append(1))
    clock.now_s += 1
    assert store.update(made, spec={"x": [1]}, status={"y": 1}) == made
    assert (store.revision(), told) == (made.revision, [])


def test_listeners_hear_of_writes_until_they_end(store) -> None:
    told = []
    end = store.subscribe(lambda: told.append(store.revision()))
    made = store.create(MODEL, "a", spec={})
    store.remove(made)
    with pytest.raises(Conflict):
        store.update(made, spec={"x": 1})
    end()
    end()
    store.create(MODEL, "b", spec={})
    assert told == [made.revision, made.revision + 1]


def test_listeners_hear_of_a_write_whose_answer_is_lost(store, monkeypatch) -> None:
    told, commit = [], store._engine.dialect.do_commit

    def lose(connection) -> None:
        commit(connection)
        raise store._engine.dialect.dbapi.OperationalError("the connection is lost")

    store.subscribe(lambda: told.append(store.get(MODEL, "a") is not None))
    writer = store.listeners.id
    with monkeypatch.context() as broken:
        broken.setattr(store._engine.dialect, "do_commit", lose)
        with pytest.raises(Unavailable):
            store.create(MODEL, "a", spec={})
    assert told == [True]
    assert store.listeners.id != writer, "PostgreSQL's announcement would be ignored as one of this process"


def test_a_failing_listener_affects_neither_the_writer_nor_other_listeners(store) -> None:
    told = []

    def fail() -> None:
        raise RuntimeError("a bug")

    store.subscribe(fail)
    store.subscribe(lambda: told.append(1))
    assert store.create(MODEL, "a", spec={}) == store.get(MODEL, "a")
    assert told == [1]


def test_of_writers_with_the_same_revision_one_wins(store) -> None:
    record = store.create(WORKER, "a", spec={"by": None})

    def write(number: int) -> Record | None:
        try:
            return store.update(record, spec={"by": number})
        except Conflict:
            return None

    with ThreadPoolExecutor(8) as pool:
        written = [done for done in pool.map(write, range(16)) if done is not None]
    assert len(written) == 1
    assert store.get(WORKER, "a") == written[0]


def test_threads_that_read_and_write_lose_nothing(store) -> None:
    record = store.create(WORKER, "counter", spec={"n": 0})
    del record
    start = threading.Barrier(4)

    def count(_: int) -> None:
        start.wait()
        done = 0
        while done < 10:
            found = store.get(WORKER, "counter")
            assert found is not None
            with contextlib.suppress(Conflict):
                store.update(found, spec={"n": found.spec["n"] + 1})
                done += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    found = store.get(WORKER, "counter")
    assert found is not None
    assert found.spec == {"n": 40}


def test_a_store_has_the_same_records_after_it_is_reopened(lasting_place) -> None:
    with contextlib.closing(open_store(lasting_place)) as store:
        made = store.create(MODEL, "a", spec=NASTY)
    with contextlib.closing(open_store(lasting_place)) as store:
        assert store.get(MODEL, "a") == made
        assert store.revision() == made.revision


def test_two_stores_on_one_database_see_each_other(lasting_place) -> None:
    with (
        contextlib.closing(open_store(lasting_place)) as first,
        contextlib.closing(open_store(lasting_place)) as second,
    ):
        made = first.create(MODEL, "a", spec={})
        written = second.update(made, spec={"x": 1})
        assert first.revision() == written.revision
        with pytest.raises(Conflict):
            first.update(made, spec={"x": 2})


def test_concurrently_opened_stores_create_the_tables_once(lasting_place) -> None:
    def work(number: int) -> None:
        with contextlib.closing(open_store(lasting_place)) as store:
            store.create(MODEL, str(number), spec={})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    with contextlib.closing(open_store(lasting_place)) as store:
        assert len(store.list(MODEL)) == 4


def test_the_file_belongs_to_its_owner_alone(tmp_path) -> None:
    with contextlib.closing(open_store(tmp_path / "state.db")) as store:
        store.create(ACCESS_KEY, "a", spec={"secret": "s"})
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("mysql://localhost/x", "expected sqlite:// or postgresql://"),
        ("postgresql://user:secret@host:port/x", "is invalid"),
    ],
)
def test_the_error_for_a_location_that_cannot_be_opened_has_no_secrets(where, said) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        open_store(where)
    assert "secret" not in caught.value.message


def test_a_server_that_cannot_be_reached_may_be_tried_again() -> None:
    with pytest.raises(Unavailable, match="cannot be reached") as caught:
        open_store("postgresql://user:secret@127.0.0.1:1/x")
    assert "secret" not in caught.value.message


def test_a_refusal_of_a_server_is_a_settings_error(postgresql_server) -> None:
    with pytest.raises(SettingsError, match=r"cannot be opened.*does not exist"):
        open_store(postgresql_server.replace("/postgres?", "/missing?"))


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"my precious diary" * 100)
    with pytest.raises(SettingsError, match="cannot be opened"):
        open_store(path)
    assert path.read_bytes() == b"my precious diary" * 100


def test_a_folder_that_cannot_be_created_is_a_settings_error(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="Choose another folder"):
        open_store(tmp_path / "file" / "state.db")


def test_a_store_of_a_newer_headrace_is_refused(tmp_path) -> None:
    import sqlite3

    path = tmp_path / "state.db"
    open_store(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE headrace_store SET schema_version = 99")
    with pytest.raises(SettingsError, match="has schema version 99"):
        open_store(path)


def test_a_store_on_a_full_disk_reports_it_and_keeps_its_records(tmp_path) -> None:
    import sqlalchemy as sa

    with contextlib.closing(open_store(tmp_path / "state.db")) as store:
        made = store.create(MODEL, "a", spec={})

        def no_more_pages(connection, _record) -> None:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count={pages}")

        sa.event.listen(store._engine, "connect", no_more_pages)
        store._engine.dispose()
        with pytest.raises(Unavailable, match="is it full"):
            store.create(MODEL, "b", spec={"x": "y" * 100_000})
        assert store.get(MODEL, "b") is None
        assert store.get(MODEL, "a") == made


def test_selected_records_are_filtered_ordered_and_resumed_by_the_database(store, clock) -> None:
    times = {"a": 3.0, "B": 1.0, "ab": 2.0, "é": 2.0, "a_c": 4.0, "axc": 5.0}
    for name, clock.now_s in times.items():
        store.create(MODEL, name, spec={"n": name})
    store.create(ENDPOINT, "a", spec={})
    assert store.count(MODEL) == 6
    by_time = sorted(times, key=lambda name: (times[name], name))
    cases = [
        (Selection(), by_time),
        (Selection(is_descending=True), by_time[::-1]),
        (Selection(order="name"), sorted(times)),
        (Selection(order="name", after=Entry(name="a_c", created_s=0.0)), ["ab", "axc", "é"]),
        (Selection(after=Entry(name="ab", created_s=2.0)), ["é", "a", "a_c", "axc"]),
        (Selection(is_descending=True, after=Entry(name="é", created_s=2.0)), ["ab", "B"]),
        (Selection(name_part="B"), ["B", "ab"]),
        (Selection(name_part="_"), ["a_c"]),
        (Selection(name_prefix="a"), ["ab", "a", "a_c", "axc"]),
        (Selection(name_prefix="A"), []),
        (Selection(names=["a", "B", "none"]), ["B", "a"]),
        (Selection(created_after_s=2.0, created_before_s=5.0), ["a", "a_c"]),
        (Selection(names=["\0"]), []),
        (Selection(name_prefix="\ud800"), []),
    ]
    for selection, expected in cases:
        assert [entry.name for entry in store.entries(MODEL, selection)] == expected, selection
        assert [record.spec["n"] for record in store.each(MODEL, selection)] == expected, selection


def test_records_written_and_removed_during_a_listing_shift_nothing(store, clock) -> None:
    for number in range(40):
        clock.now_s += 1
        store.create(MODEL, f"{number:02d}", spec={})
    seen = []
    for record in store.each(MODEL):
        seen.append(record.name)
        if record.name == "03":
            store.remove(store.get(MODEL, "02"))
            store.remove(store.get(MODEL, "30"))
    assert seen == [f"{number:02d}" for number in range(40) if number != 30]


def test_a_name_is_found_whatever_its_case_but_best_as_it_is(store) -> None:
    store.create(MODEL, "Big-Model", spec={"n": 1})
    assert store.find(MODEL, "big-MODEL").name == "Big-Model"
    assert store.find(MODEL, "big") is None
    assert store.find(ENDPOINT, "Big-Model") is None
    store.create(MODEL, "big-model", spec={"n": 2})
    assert store.find(MODEL, "big-model").spec == {"n": 2}


def test_of_records_that_are_removed_at_once_the_last_one_stays(lasting_place) -> None:
    with (
        contextlib.closing(open_store(lasting_place)) as first,
        contextlib.closing(open_store(lasting_place)) as second,
    ):
        first.create(ENDPOINT, "of another kind", spec={})
        for turn in range(10):
            pair = [(store, first.create(MODEL, f"{turn}-{store is first}", spec={})) for store in (first, second)]

            def remove(store_and_record) -> bool:
                store, record = store_and_record
                try:
                    store.remove(record, keep_last=True)
                except LastRecord:
                    return False
                return True

            with ThreadPoolExecutor(2) as pool:
                assert sorted(pool.map(remove, pair)) == [False, True]
            (left,) = first.list(MODEL)
            first.remove(left)
