"""Lines of user code's output."""

import asyncio
import os
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.handlers.channel import MAX_LINE_BYTES, LineSplitter, OutputReader


@given(
    st.lists(st.text(st.characters(codec="ascii", exclude_categories=["C", "Z"]), min_size=1), max_size=9), st.data()
)
def test_lines_come_back_however_their_bytes_are_cut(lines: list[str], data: st.DataObject) -> None:
    rest, splitter, found = "\n".join(lines).encode(), LineSplitter(), []
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        found += splitter.feed(rest[:cut])
        rest = rest[cut:]
    assert found + splitter.end() == lines


def test_a_line_without_an_end_is_logged_in_pieces_and_odd_bytes_are_escaped() -> None:
    splitter = LineSplitter()
    lines = splitter.feed(b"x" * (2 * MAX_LINE_BYTES + 1))
    assert [len(line) for line in lines] == [MAX_LINE_BYTES, MAX_LINE_BYTES]
    assert splitter.feed(b"\n\n\xff\r\n") == ["x", "\\xff"]


def test_a_progress_bar_is_its_last_state() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\r 10%\r 50%\r100%\r\ndone\r\n") == ["100%", "done"]


async def test_output_without_line_ends_is_slowed_down_like_many_lines(monkeypatch) -> None:
    """Else a child could fill the disk with its log, and keep the server from its requests."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 0.0)
    read, write = os.pipe()
    os.set_blocking(write, False)
    lines: list[str] = []
    reader = OutputReader(read, lines.append)
    for _ in range(8):
        with suppress(BlockingIOError):
            os.write(write, b"x" * 60_000)
        for _ in range(40):
            await asyncio.sleep(0)
    num_read = sum(map(len, lines))
    os.close(write)
    reader.close()
    assert 60_000 < num_read < 200_000
