"""Bodies in AWS's chunked coding give their content, however they are cut, and nothing malformed passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.storage.s3_upload import AwsChunkedReader, BadChunk


def coded(pieces: list[bytes], *, signed: bool, trailers: dict[str, str]) -> bytes:
    suffix = b";chunk-signature=" + b"ab" * 32 if signed else b""
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(piece), suffix, piece) for piece in pieces)
    lines = "".join(f"{name}:{value}\r\n" for name, value in trailers.items()).encode()
    return body + b"0" + suffix + b"\r\n" + lines + b"\r\n"


def read(data: bytes, cuts: list[int]) -> tuple[bytes, AwsChunkedReader]:
    reader, content, start = AwsChunkedReader(), b"", 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        content += reader.feed(data[start:cut])
        start = max(start, cut)
    reader.finish()
    return content, reader


@given(
    st.lists(st.binary(min_size=1, max_size=200), max_size=6),
    st.booleans(),
    st.dictionaries(st.sampled_from(["x-amz-checksum-crc32", "x-amz-trailer-signature"]), st.just("abc=")),
    st.lists(st.integers(0, 10_000), max_size=12),
)
def test_content_and_trailers_do_not_depend_on_how_the_body_is_cut(pieces, signed, trailers, cuts) -> None:
    content, reader = read(coded(pieces, signed=signed, trailers=trailers), cuts)
    assert content == b"".join(pieces)
    assert reader.trailers == trailers


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=3), st.data())
def test_a_truncated_body_is_incomplete(pieces, data) -> None:
    whole = coded(pieces, signed=False, trailers={"x-amz-checksum-crc32": "abc="})
    end = data.draw(st.integers(0, whole.rindex(b"0\r\nx-amz") + 2))
    with pytest.raises(BadChunk):
        read(whole[:end], [])


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\nab\r\n0\r\n\r\n",
        b"-1\r\na\r\n0\r\n\r\n",
        b"2\r\nabc\r\n0\r\n\r\n",
        b"2\r\nab\r\n0\r\n\r\nmore",
        b"123456789\r\n",
        b"a" * 5000,
        b"0\r\nno colon\r\n\r\n",
        b"0\r\n" + b"".join(b"t%d:1\r\n" % number for number in range(40)) + b"\r\n",
        b"",
    ],
)
def test_malformed_chunks_are_refused(body: bytes) -> None:
    with pytest.raises(BadChunk):
        read(body, [])


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    reader = AwsChunkedReader()
    try:
        reader.feed(data)
        reader.finish()
    except BadChunk:
        return
    assert reader.is_complete
