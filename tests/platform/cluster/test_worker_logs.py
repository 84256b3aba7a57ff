"""Logs as events: order, times, positions, trimming."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.cluster.worker_logs import MAX_EVENT_BYTES, WorkerLogEvent, WorkerLogs

NOW_S = 2_000_000_000.0
ENDLESS = NOW_S * 2


def logs_of(tmp_path: Path, content: bytes = b"", *, now_s: float = ENDLESS) -> WorkerLogs:
    folder = tmp_path / "w"
    folder.mkdir(exist_ok=True)
    (folder / "log.txt").write_bytes(content)
    os.utime(folder / "log.txt", (NOW_S, NOW_S))
    return WorkerLogs(tmp_path, now_s=lambda: now_s)


def append(tmp_path: Path, content: bytes) -> None:
    with (tmp_path / "w" / "log.txt").open("ab") as file:
        file.write(content)


def line(second: int, text: str = "x") -> bytes:
    stamp = f"2026-11-21T10:00:{second:02}.500000Z"
    return json.dumps({"event": text, "timestamp": stamp}).encode() + b"\n"


def messages(events) -> list[str]:
    return [event.message for event in events]


def test_lines_are_read_in_the_order_in_which_they_were_written(tmp_path) -> None:
    logs = logs_of(tmp_path, b"one\n\ntwo \xff\r\nthree\n")
    assert messages(logs.read("w")) == ["one", "two \ufffd", "three"]
    assert logs.size_bytes("w") == 18
    assert logs.end_position("w") == 18


@pytest.mark.parametrize("name", ["unknown", "../w", "", "a/b"])
def test_an_unknown_worker_has_no_events(tmp_path, name) -> None:
    logs = logs_of(tmp_path, b"one\n")
    assert list(logs.read(name)) == []
    assert (logs.size_bytes(name), logs.trim(name)) == (0, False)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ('{"event": "x", "timestamp": "2026-11-21T10:00:00.250000Z"}', 1795255200.25),
        ('{"timestamp":"2026-11-21T12:00:00+02:00","event":"x"}', 1795255200.0),
        ("2026-11-21T10:00:00Z hello", 1795255200.0),
        ("[2026-11-21 10:00:00,750+00:00] hello", 1795255200.75),
        ("no time at all", NOW_S),
        ('{"timestamp": "2026-99-99T10:00:00Z"}', NOW_S),
        ('he said "timestamp": "2026-11-21T10:00:00Z"', NOW_S),
    ],
)
def test_a_line_has_its_own_time_or_else_that_of_the_file(tmp_path, text, seconds) -> None:
    (event,) = logs_of(tmp_path, text.encode() + b"\n").read("w")
    assert event.timestamp_ms == int(seconds * 1000)


def test_a_line_without_a_time_has_the_time_of_the_line_before(tmp_path) -> None:
    logs = logs_of(tmp_path, line(1) + b"Traceback:\n  a\n" + line(2) + b"b\n")
    times = [event.timestamp_ms for event in logs.read("w")]
    assert [time - times[0] for time in times] == [0, 0, 0, 1000, 1000]
    later = logs.read("w", position=len(line(1)))
    assert [event.timestamp_ms for event in later] == times[1:]


def test_events_are_filtered_by_time(tmp_path) -> None:
    logs = logs_of(tmp_path, b"".join(line(second, str(second)) for second in range(10)))
    first_ms = logs.read("w")[0].timestamp_ms
    chosen = logs.read("w", start_ms=first_ms + 2000, end_ms=first_ms + 5000)
    assert [json.loads(text)["event"] for text in messages(chosen)] == ["2", "3", "4"]
    last = logs.read("w", end_ms=first_ms + 5000, limit=2, is_backward=True)
    assert [json.loads(text)["event"] for text in messages(last)] == ["3", "4"]


def test_a_line_that_is_still_being_written_is_not_read_yet(tmp_path) -> None:
    logs = logs_of(tmp_path, b"whole\nhal", now_s=NOW_S + 1)
    (event,) = logs.read("w")
    assert event.message == "whole"
    assert messages(logs.read("w", position=event.next_position)) == []
    append(tmp_path, b"f\n")
    assert messages(logs.read("w", position=event.next_position)) == ["half"]


def test_a_last_line_without_a_line_end_is_read_eventually(tmp_path) -> None:
    assert messages(logs_of(tmp_path, b"whole\nAborted").read("w")) == ["whole", "Aborted"]


def test_a_very_long_line_is_split(tmp_path) -> None:
    text = b"y" * (3 * MAX_EVENT_BYTES + 7)
    logs = logs_of(tmp_path, b"a\n" + text + b"\nb\n")
    events = logs.read("w")
    assert messages(events)[0] == "a"
    assert messages(events)[-1] == "b"
    assert "".join(messages(events)[1:-1]).encode() == text
    assert max(len(message) for message in messages(events)) == MAX_EVENT_BYTES
    assert messages(logs.read("w", position=events[2].position)) == messages(events)[2:]


LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30), max_size=60)


def contiguous(events: list[WorkerLogEvent]) -> bool:
    return all(event.next_position <= following.position for event, following in pairwise(events))


@given(lines=LINES, limit=st.integers(1, 7))
def test_pages_forwards_and_backwards_cover_the_whole_log(tmp_path_factory, lines, limit) -> None:
    logs = logs_of(tmp_path_factory.mktemp("logs"), "".join(f"{text}\n" for text in lines).encode())
    whole = list(logs.read("w"))
    assert messages(whole) == [text for text in lines if text]
    assert contiguous(whole)
    forwards: list[WorkerLogEvent] = []
    while page := logs.read("w", position=forwards[-1].next_position if forwards else None, limit=limit):
        forwards += page
    backwards: list[WorkerLogEvent] = []
    while page := logs.read("w", position=backwards[0].position if backwards else None, limit=limit, is_backward=True):
        backwards = [*page, *backwards]
    assert forwards == whole
    assert backwards == whole


def test_backward_reading_widens_its_window_until_it_has_enough(tmp_path) -> None:
    filling = b"z" * 1000 + b"\n"
    logs = logs_of(tmp_path, line(1, "first") + filling * 3000 + b"last\n")
    first_ms = logs.read("w", limit=1)[0].timestamp_ms
    (found,) = logs.read("w", end_ms=first_ms + 1, limit=1, is_backward=True, position=len(line(1, "first")))
    assert "first" in found.message
    assert messages(logs.read("w", limit=1, is_backward=True)) == ["last"]


def test_trimming_keeps_the_end_and_all_positions(tmp_path) -> None:
    content = b"".join(f"2026-11-21T10:00:00Z line {number}\n".encode() for number in range(1000))
    logs = logs_of(tmp_path, content)
    before = logs.read("w")
    assert logs.trim("w", max_bytes=4000, kept_bytes=1000)
    assert logs.size_bytes("w") <= 1000
    after = logs.read("w")
    assert list(after) == list(before[-len(after) :])
    assert list(logs.read("w", position=before[10].position, limit=3)) == list(after[:3])
    append(tmp_path, b"2026-11-21T10:00:00Z next\n")
    os.utime(tmp_path / "w" / "log.txt", (NOW_S, NOW_S))
    (new,) = logs.read("w", position=after[-1].next_position)
    assert (new.message[-4:], new.position) == ("next", len(content))
    assert not logs.trim("w", max_bytes=4000, kept_bytes=1000)
    assert logs.trim("w", max_bytes=500, kept_bytes=100)
    assert logs.read("w")[-1] == new


def test_a_writer_continues_at_the_end_after_a_trim(tmp_path) -> None:
    logs = logs_of(tmp_path)
    with (tmp_path / "w" / "log.txt").open("ab", buffering=0) as writer:
        for number in range(500):
            writer.write(f"line {number}\n".encode())
        logs.trim("w", max_bytes=1000, kept_bytes=100)
        writer.write(b"after\n")
    kept = messages(logs.read("w"))
    assert kept[-2:] == ["line 499", "after"]
    assert "\0" not in "".join(kept)
