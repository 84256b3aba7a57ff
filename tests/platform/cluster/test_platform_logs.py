"""Logs of ended workers: their streams, their limits, and crashes while they are moved."""

import os
import stat
from pathlib import Path

import pytest

from headrace.platform.cluster.platform_logs import MIN_COUNTED_BYTES, PlatformLogs
from headrace.platform.cluster.worker_files import worker_files

GROUP = "/aws/sagemaker/Endpoints/e"
DAY_S = 86400.0


class Site:
    """A data folder and a clock."""

    def __init__(self, root: Path) -> None:
        self.workers, self.ended = root / "workers", root / "ended-logs"
        self.now_s = 1_700_000_000.0

    def logs(self, *, max_bytes: int = 1 << 20) -> PlatformLogs:
        """Open the logs, like a platform that has just started."""
        return PlatformLogs(self.workers, self.ended, max_bytes=max_bytes, now_s=lambda: self.now_s)

    def write(self, name: str, content: bytes) -> None:
        files = worker_files(self.workers, name)
        files.folder.mkdir(parents=True, exist_ok=True)
        files.assignment.write_text("a secret")
        files.log.write_bytes(content)
        files.log.chmod(0o600)
        os.utime(files.log, (self.now_s - 60, self.now_s - 60))

    def keep(self, logs: PlatformLogs, name: str) -> None:
        logs.keep(name, log_group=GROUP, log_stream=f"a/{name}", created_s=self.now_s - 100)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def said(logs: PlatformLogs, name: str) -> list[str]:
    return [event.message for event in logs.read(name)]


def names(logs: PlatformLogs) -> list[str]:
    return [ended.worker for ended in logs.ended()]


def test_a_log_outlives_its_worker_and_the_platform(site: Site) -> None:
    logs = site.logs()
    site.write("w", b"one\ntwo\n")
    positions = [event.position for event in logs.read("w")]
    site.keep(logs, "w")
    assert not worker_files(site.workers, "w").log.exists()
    for found in (logs, site.logs()):
        assert said(found, "w") == ["one", "two"]
        assert [event.position for event in found.read("w")] == positions
        assert found.size_bytes("w") == 8
        (ended,) = found.ended()
        assert (ended.worker, ended.log_group, ended.log_stream) == ("w", GROUP, "a/w")
        assert ended.ended_ms == int(site.now_s * 1000)
        assert ended.first_ms == ended.last_ms == ended.ended_ms - 60_000
        assert ended.created_ms == ended.ended_ms - 100_000


def test_only_the_log_is_kept_and_only_its_owner_reads_it(site: Site) -> None:
    logs = site.logs()
    site.write("w", b"one\n")
    site.keep(logs, "w")
    assert sorted(path.name for path in (site.ended / "w").iterdir()) == ["log.txt", "stream.json"]
    modes = [
        stat.S_IMODE(path.stat().st_mode) for path in (site.ended, site.ended / "w", *(site.ended / "w").iterdir())
    ]
    assert modes == [0o700, 0o700, 0o600, 0o600]


def test_positions_stay_valid_when_a_log_is_cut(site: Site) -> None:
    logs = site.logs()
    site.write("w", b"one\ntwo\n")
    worker_files(site.workers, "w").log_base.write_text("1000")
    site.keep(logs, "w")
    assert [event.position for event in logs.read("w")] == [1000, 1004]
    assert [event.message for event in logs.read("w", position=1004)] == ["two"]


@pytest.mark.parametrize("content", [b"", b"\n\n", None])
def test_a_worker_without_output_leaves_no_log(site: Site, content: bytes | None) -> None:
    logs = site.logs()
    if content is not None:
        site.write("w", content)
    site.keep(logs, "w")
    assert (names(logs), names(site.logs())) == ([], [])


def test_keeping_a_log_is_idempotent(site: Site) -> None:
    logs = site.logs()
    site.write("w", b"one\n")
    site.keep(logs, "w")
    before = logs.ended()
    site.now_s += 5
    site.keep(logs, "w")
    assert logs.ended() == before
    assert said(logs, "w") == ["one"]


def test_the_oldest_logs_are_removed_first(site: Site) -> None:
    logs = site.logs(max_bytes=3 * MIN_COUNTED_BYTES)
    for number in range(5):
        site.now_s += 1
        site.write(f"w{number}", b"line\n")
        site.keep(logs, f"w{number}")
    assert names(logs) == ["w2", "w3", "w4"]
    site.now_s += 1
    site.write("large", b"0123456\n" * (2 * MIN_COUNTED_BYTES // 8))
    site.keep(logs, "large")
    assert names(logs) == ["w4", "large"]
    assert sorted(path.name for path in site.ended.iterdir()) == ["large", "w4"]
    assert said(logs, "w0") == []


def test_a_log_above_the_total_limit_keeps_its_end(site: Site) -> None:
    logs = site.logs(max_bytes=MIN_COUNTED_BYTES)
    lines = [f"{number:07}" for number in range(10_000)]
    site.write("w", ("\n".join(lines) + "\n").encode())
    site.keep(logs, "w")
    assert logs.size_bytes("w") <= MIN_COUNTED_BYTES
    (last,) = logs.read("w", limit=1, is_backward=True)
    assert (last.message, last.next_position) == (lines[-1], 80_000)


def test_a_smaller_limit_applies_from_the_next_start(site: Site) -> None:
    logs = site.logs()
    for name in ("w1", "w2"):
        site.now_s += 1
        site.write(name, b"line\n")
        site.keep(logs, name)
    assert names(site.logs(max_bytes=MIN_COUNTED_BYTES)) == ["w2"]
    assert names(site.logs(max_bytes=0)) == []
    assert list(site.ended.iterdir()) == []


def test_no_log_is_kept_with_a_limit_of_zero(site: Site) -> None:
    logs = site.logs(max_bytes=0)
    site.write("w", b"one\n")
    site.keep(logs, "w")
    assert names(logs) == []
    assert said(logs, "w") == ["one"]  # until its folder is removed


def test_logs_are_removed_at_their_maximum_age(site: Site) -> None:
    logs = site.logs()
    site.write("w", b"one\n")
    site.keep(logs, "w")
    site.now_s += 6.9 * DAY_S
    assert names(logs) == ["w"]
    site.now_s += 0.2 * DAY_S
    assert names(logs) == []
    assert not (site.ended / "w").exists()


def test_logs_can_be_removed(site: Site) -> None:
    logs = site.logs()
    for name in ("w1", "w2"):
        site.write(name, b"line\n")
        site.keep(logs, name)
    logs.drop(["w1", "unknown", "../w2"])
    assert (names(logs), names(site.logs()), said(logs, "w1")) == (["w2"], ["w2"], [])


def test_logs_that_another_process_keeps_and_removes_are_noticed(site: Site) -> None:
    leader, other = site.logs(), site.logs(max_bytes=2 * MIN_COUNTED_BYTES)
    assert names(other) == []
    for name in ("w1", "w2"):
        site.now_s += 1
        site.write(name, b"line\n")
        site.keep(leader, name)
    assert names(other) == ["w1", "w2"]
    other.drop(["w1"])
    assert (names(leader), said(leader, "w1")) == (["w2"], [])
    for name in ("w3", "w4"):
        site.now_s += 1
        site.write(name, b"line\n")
        site.keep(leader, name)
    assert names(other) == ["w3", "w4"], "its limit applies to the logs of all"
    assert names(leader) == ["w3", "w4"]


def test_an_interrupted_move_is_finished(site: Site) -> None:
    """The platform was killed after the log was prepared and before it was moved."""
    site.write("w", b"one\n")
    moving = worker_files(site.workers, "w").folder / "ended"
    moving.mkdir()
    worker_files(site.workers, "w").log.replace(moving / "log.txt")
    logs = site.logs()
    site.keep(logs, "w")
    assert (names(logs), said(logs, "w")) == (["w"], ["one"])


def test_an_interrupted_removal_is_finished(site: Site) -> None:
    logs = site.logs()
    for name in ("w1", "w2", "w3"):
        site.write(name, b"line\n")
        site.keep(logs, name)
    (site.ended / "w1" / "log.txt").unlink()
    (site.ended / "w2" / "stream.json").write_text("{")
    assert names(site.logs()) == ["w3"]
    assert [path.name for path in site.ended.iterdir()] == ["w3"]


def test_a_note_of_another_worker_is_ignored(site: Site) -> None:
    logs = site.logs()
    site.write("w1", b"line\n")
    site.keep(logs, "w1")
    (site.ended / "w1").rename(site.ended / "w2")
    assert names(site.logs()) == []


@pytest.mark.parametrize("name", ["../w", "", "a/b"])
def test_an_unsafe_name_is_refused(site: Site, name: str) -> None:
    with pytest.raises(ValueError, match="is not a worker name"):
        site.keep(site.logs(), name)
    assert said(site.logs(), name) == []
