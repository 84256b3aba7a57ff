"""Blobs in SQLite and PostgreSQL: parts, writes of several threads and processes, failures, and kill -9."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from headrace.core.errors import Unavailable
from headrace.platform.state.blobs import Blobs, open_blobs
from headrace.platform.state.records import Fenced
from headrace.platform.state.store import open_store
from tests.waiting import pauses

ROOT = Path(__file__).parent.parent.parent.parent
SPACE = "space"


@pytest.fixture
def blobs(lasting_place: str, tmp_path: Path) -> Iterator[Blobs]:
    with contextlib.closing(open_blobs(lasting_place, tmp_path / "blobs.sqlite")) as opened:
        yield opened


def test_a_blob_is_found_by_its_key_and_replaced_as_a_whole(blobs: Blobs) -> None:
    blobs.put(SPACE, "b/2", b"old", b"longer", b"than the new one")
    blobs.put(SPACE, "b/2", b"", bytes(range(256)))
    blobs.put(SPACE, "b/1", b"1")
    blobs.put(SPACE, "b%", b"no pattern")
    blobs.put("other", "b/1", b"other")
    assert blobs.keys(SPACE) == ["b%", "b/1", "b/2"]
    assert (blobs.keys(SPACE, "b/"), blobs.keys(SPACE, "b%")) == (["b/1", "b/2"], ["b%"])
    assert (blobs.count(SPACE), blobs.count("none")) == (3, 0)
    assert blobs.read(SPACE, "b/2") == b""
    assert blobs.read_many(SPACE, ["b/1", "b/2", "b/3"], part=1) == {"b/2": bytes(range(256))}
    assert blobs.parts(SPACE, "b/2") == [b"", bytes(range(256))]
    blobs.delete(SPACE, "b/2", "b/3")
    assert blobs.read(SPACE, "b/2") is blobs.read(SPACE, "b/2", part=1) is None
    assert blobs.read("other", "b/1") == b"other"


def test_parts_that_processes_append_at_once_all_stay(lasting_place: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        opened = [
            stack.enter_context(contextlib.closing(open_blobs(lasting_place, tmp_path / "blobs.sqlite")))
            for _ in range(2)
        ]
        numbers = list(range(60))
        list(threads.map(lambda number: opened[number % 2].append(SPACE, "log", b"%d" % number), numbers))
        found = opened[0].parts(SPACE, "log")
        assert sorted(map(int, found)) == numbers
        assert opened[1].parts(SPACE, "log", first=58) == found[58:]


def test_parts_are_there_once_though_the_answer_to_their_commit_is_lost(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, num_lost = blobs._execute, 2

    def lose_answers(writes: Sequence[object]) -> None:
        nonlocal num_lost
        execute(writes)
        if num_lost and len(writes) > 1:
            num_lost -= 1
            raise sa.exc.OperationalError("COMMIT", None, OSError("the server closed the connection"))

    monkeypatch.setattr(blobs, "_execute", lose_answers)
    parts = [b"%d" % number for number in range(6)] + [b"twice"] * 2
    with ThreadPoolExecutor(8) as threads:
        with blobs._lock:
            writes = [threads.submit(blobs.append, SPACE, "log", part) for part in parts]
            for pause_s in pauses():
                if len(blobs._waiting) == len(parts):
                    break
                time.sleep(pause_s)
        for write in writes:
            write.result()
    assert sorted(blobs.parts(SPACE, "log")) == parts


def test_a_write_that_cannot_be_stored_does_not_fail_those_beside_it(blobs: Blobs) -> None:
    keys = ["a", "b\ud800", "c"]  # a key that no database takes

    def put(key: str) -> str:
        try:
            blobs.put(SPACE, key, b"x")
        except (Unavailable, UnicodeError) as error:
            return type(error).__name__
        return "stored"

    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(put, keys * 10))
    assert [text == "stored" for text in told] == [True, False, True] * 10
    assert blobs.keys(SPACE) == ["a", "c"]


def test_a_database_out_of_reach_is_unavailable_until_it_is_back(blobs: Blobs) -> None:
    def execute(statement: str) -> None:
        with blobs._engine.begin() as connection:
            connection.execute(sa.text(statement))

    execute("ALTER TABLE headrace_blobs RENAME TO away")
    for use in (lambda: blobs.put(SPACE, "k", b""), lambda: blobs.keys(SPACE), lambda: blobs.delete(SPACE, "k")):
        with pytest.raises(Unavailable, match="The store"):
            use()
    execute("ALTER TABLE away RENAME TO headrace_blobs")
    blobs.put(SPACE, "k", b"back")
    assert blobs.read(SPACE, "k") == b"back"


def test_a_leader_cannot_write_after_its_term(new_database: Callable[[], str], tmp_path: Path) -> None:
    place = new_database()
    with (
        contextlib.closing(open_store(place)) as store,
        contextlib.closing(open_blobs(place, tmp_path)) as blobs,
        ThreadPoolExecutor(8) as threads,
    ):
        store.begin_term(3)
        blobs.put(SPACE, "a", b"1", term=3)
        store.begin_term(4)

        def write(number: int) -> str:
            try:
                blobs.append(SPACE, "log", b"%d" % number, term=3 if number % 2 else 4)
            except Fenced:
                return "fenced"
            return "stored"

        assert list(threads.map(write, range(20))) == ["stored", "fenced"] * 10
        for late in (lambda: blobs.put(SPACE, "a", b"2", term=3), lambda: blobs.delete(SPACE, "a", term=3)):
            with pytest.raises(Fenced, match="since term 4"):
                late()
        assert (blobs.read(SPACE, "a"), len(blobs.parts(SPACE, "log"))) == (b"1", 10)


def test_all_blobs_are_replaced_by_those_of_a_copy(blobs: Blobs) -> None:
    for number in range(120):
        blobs.put(SPACE, f"{number:03d}", bytes([number]), b"second")
    copy = io.BytesIO()
    blobs.copy_to(copy)
    blobs.delete(SPACE, "000")
    blobs.put("other", "later", b"later")
    blobs.replace_by(copy.getvalue().splitlines())
    assert (blobs.count(SPACE), blobs.count("other")) == (120, 0)
    assert blobs.parts(SPACE, "119") == [b"w", b"second"]


@pytest.mark.parametrize("after_lines", [1, 40])
def test_reported_writes_are_there_after_kill_9(lasting_place: str, tmp_path: Path, after_lines: int) -> None:
    place = [lasting_place, str(tmp_path / "blobs.sqlite")]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.platform.state.blob_writer", *place],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        told = [next(writer.stdout) for _ in range(after_lines)]
        writer.send_signal(signal.SIGKILL)
        told += [line for line in writer.stdout if line.endswith("\n")]
    made = {line.split()[1] for line in told if line.startswith("made")}
    removed = {line.split()[1] for line in told if line.startswith("removed")}
    with contextlib.closing(open_blobs(place[0], Path(place[1]))) as blobs:
        found = set(blobs.keys(SPACE))
        assert not found & removed
        assert len(made - removed - found) <= 4, "each thread may have removed one untold"
        assert all(blobs.parts(SPACE, key) == [key.encode(), b"body"] for key in found)
