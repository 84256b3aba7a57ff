"""Frames on the wire."""

import os
import socket
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_handler.frames import (
    BadFrame,
    FrameParser,
    Kind,
    after,
    encode,
    read_memory_file,
    receive,
    send_some,
    write_memory_file,
)

HEADERS = st.dictionaries(
    st.text(max_size=8).filter(lambda name: name != "memfds"), st.integers() | st.text(max_size=8)
)
FRAMES = st.lists(st.tuples(st.sampled_from(Kind), HEADERS, st.binary(max_size=50)), max_size=5)


@given(FRAMES, st.lists(st.integers(1, 40), max_size=20))
def test_frames_come_back_however_their_bytes_are_cut(
    frames: list[tuple[Kind, dict[str, object], bytes]], cuts: list[int]
) -> None:
    data = b"".join(b"".join(encode(kind, header, [payload])) for kind, header, payload in frames)
    parser, found = FrameParser(), []
    for cut in [*cuts, len(data)]:
        found += [(frame.kind, frame.header, bytes(frame.payload)) for frame in parser.feed(data[:cut])]
        data = data[cut:]
    assert found == frames


@given(st.binary(max_size=100))
def test_other_bytes_are_refused_or_wait_for_more(data: bytes) -> None:
    with suppress(BadFrame):
        list(FrameParser().feed(data))


@given(st.lists(st.binary(max_size=9), max_size=6), st.integers(0, 60))
def test_the_rest_of_sent_buffers_is_what_was_not_sent(buffers: list[bytes], num_bytes: int) -> None:
    assert b"".join(after(buffers, num_bytes)) == b"".join(buffers)[num_bytes:]


def test_a_memory_file_travels_with_its_frame() -> None:
    ours, theirs = socket.socketpair()
    content = os.urandom(3_000_000)
    descriptor = write_memory_file(content)
    header = {"memfds": 1}
    with ours, theirs:
        send_some(ours, encode(Kind.DATA, header), [descriptor])
        os.close(descriptor)
        (frame,) = FrameParser().feed(*receive(theirs))
    assert read_memory_file(frame.descriptors[0], len(content)) == content


def test_a_memory_file_shorter_than_announced_is_refused() -> None:
    with pytest.raises(BadFrame):
        read_memory_file(write_memory_file(b"short"), 6)


def test_a_frame_whose_memory_files_did_not_come_is_refused() -> None:
    with pytest.raises(BadFrame):
        list(FrameParser().feed(b"".join(encode(Kind.DATA, {"memfds": 1}))))
