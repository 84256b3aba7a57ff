"""Cache entries are complete or absent, filled once, and stay while they are in use."""

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.serving.artifacts.content_cache import ContentCache, content_key
from headrace.serving.artifacts.fetch_bounds import Deadline, DiskFull, FetchFailed
from tests.waiting import WAIT_S

ROOT = Path(__file__).parent.parent.parent.parent
KEY = content_key("a")


def soon() -> Deadline:
    return Deadline(30)


def fill_with(content: str, calls: list[str] | None = None):
    def fill(folder: Path) -> None:
        if calls is not None:
            calls.append(content)
        (folder / "file").write_text(content)

    return fill


@pytest.fixture
def cache(tmp_path):
    made = ContentCache(tmp_path / "cache")
    yield made
    made.close()


def test_keys_are_equal_only_for_equal_facts() -> None:
    assert content_key("a", 1, None) == content_key("a", 1, None)
    assert len({content_key("a", 1), content_key("a", "1"), content_key("a1"), content_key("a", 2)}) == 4


def test_an_entry_is_filled_once(cache) -> None:
    calls: list[str] = []
    first = cache.entry(KEY, fill_with("1", calls), soon())
    second = cache.entry(KEY, fill_with("2", calls), soon())
    assert first == second
    assert (first / "file").read_text() == "1"
    assert calls == ["1"]


@pytest.mark.parametrize("harm", [lambda path: path.write_text(""), Path.unlink])
def test_an_entry_that_has_lost_files_is_filled_again(cache, harm) -> None:
    folder = cache.entry(KEY, fill_with("first"), soon())
    cache.close()
    harm(folder / "file")
    assert (cache.entry(KEY, fill_with("second"), soon()) / "file").read_text() == "second"


def test_concurrent_threads_fill_an_entry_once(tmp_path) -> None:
    calls: list[str] = []
    start = threading.Barrier(6)

    def work(number: int) -> str:
        mine = ContentCache(tmp_path / "cache")
        start.wait()
        try:
            return (mine.entry(KEY, fill_with(str(number), calls), soon()) / "file").read_text()
        finally:
            mine.close()

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(work, range(6))) == set(calls)
    assert len(calls) == 1


def test_a_failed_fill_leaves_nothing(cache) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise FetchFailed("no")

    with pytest.raises(FetchFailed, match="no"):
        cache.entry(KEY, fail, soon())
    assert [path.name for path in cache.folder.iterdir()] == [f"{KEY}.lock"]
    assert (cache.entry(KEY, fill_with("1"), soon()) / "file").read_text() == "1"


def test_unused_entries_are_removed_from_a_full_disk_and_used_ones_stay(tmp_path, cache) -> None:
    other = ContentCache(cache.folder)
    used = cache.entry(content_key("used"), fill_with("used"), soon())
    unused = other.entry(content_key("unused"), fill_with("unused"), soon())
    other.close()
    tries: list[bool] = []

    def fill(folder: Path) -> None:
        tries.append(unused.exists())
        if unused.exists():
            raise DiskFull("full")
        (folder / "file").touch()

    assert cache.entry(KEY, fill, soon()).is_dir()
    assert tries == [True, False]
    assert used.is_dir()
    assert not unused.exists()


def test_a_disk_that_stays_full_is_an_error(cache) -> None:
    def fill(_: Path) -> None:
        raise DiskFull("full")

    with pytest.raises(DiskFull):
        cache.entry(KEY, fill, soon())


def test_waiting_for_another_process_ends_at_the_deadline(tmp_path, cache) -> None:
    holder = ContentCache(cache.folder)
    is_filling, may_end = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        is_filling.set()
        assert may_end.wait(WAIT_S)
        (folder / "file").touch()

    thread = threading.Thread(target=lambda: holder.entry(KEY, slow, soon()))
    thread.start()
    try:
        assert is_filling.wait(WAIT_S)
        with pytest.raises(FetchFailed, match="not downloaded within"):
            cache.entry(KEY, fill_with("2"), Deadline(0.2))
    finally:
        may_end.set()
        thread.join()
        holder.close()


FILLER = """
import sys, time
from pathlib import Path
from headrace.serving.artifacts.content_cache import ContentCache
from headrace.serving.artifacts.fetch_bounds import Deadline
def fill(folder):
    (folder / "half").touch()
    print("filling", flush=True)
    time.sleep(100)
ContentCache(Path(sys.argv[1])).entry(sys.argv[2], fill, Deadline(100))
"""


def test_another_process_fills_the_entry_after_a_kill_9_of_the_first(cache) -> None:
    command = [sys.executable, "-c", FILLER, str(cache.folder), KEY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as filler:
        assert filler.stdout is not None
        assert filler.stdout.readline() == "filling\n"
        filler.send_signal(signal.SIGKILL)
        folder = cache.entry(KEY, fill_with("1"), soon())
    assert {path.name for path in folder.iterdir()} == {"file", ".size"}


def test_a_cache_folder_that_cannot_be_created_is_one_clear_error(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FetchFailed, match="cannot be stored"):
        ContentCache(tmp_path / "file" / "cache").entry(KEY, fill_with("1"), soon())


def test_a_link_in_place_of_the_recorded_size_is_not_followed(cache, tmp_path) -> None:
    """Code of a model fills some folders, while the cache belongs to the server."""
    outside = tmp_path / "outside"
    outside.write_text("1 1")

    def fill(folder: Path) -> None:
        (folder / "file").write_text("x")
        (folder / ".size").symlink_to(outside)

    folder = cache.entry(KEY, fill, soon())
    assert outside.read_text() == "1 1"
    assert (folder / ".size").read_text() == "1 1"
    calls: list[str] = []
    cache.close()
    (folder / ".size").unlink()
    (folder / ".size").symlink_to(outside)
    cache.entry(KEY, fill_with("again", calls), soon())
    assert calls == ["again"]
