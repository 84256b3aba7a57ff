"""Lines of user code's output."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.handlers.channel import MAX_LINE_BYTES, LineSplitter


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
