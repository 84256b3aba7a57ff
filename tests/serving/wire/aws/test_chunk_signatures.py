"""Signatures of chunks: those that AWS has published, and no other."""

import hashlib
import hmac

import pytest

from headrace.platform.storage.s3_upload import AwsChunkedReader, BadSignature
from headrace.serving.wire.aws.chunk_signatures import ChunkKey, ChunkVerifier

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
"""The secret in the examples of the Amazon S3 API reference."""
CHUNKS = (b"a" * 65_536, b"a" * 1024, b"")
PLAIN = (
    "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
    (
        "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    ),
    "",
)
WITH_TRAILER = (
    "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
    (
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    ),
    (
        "x-amz-checksum-crc32c:sOO8/Q==\r\n"
        "x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n"
    ),
)


def key_of(seed: str) -> ChunkKey:
    key = f"AWS4{SECRET}".encode()
    for part in ("20130524", "us-east-1", "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    scope = "20130524/us-east-1/s3/aws4_request"
    return ChunkKey(key=key, timestamp="20130524T000000Z", scope=scope, seed=seed)


def coded(chunks, signatures, trailer) -> bytes:
    pairs = zip(chunks, signatures, strict=True)
    lines = [b"%x;chunk-signature=%b\r\n%b" % (len(chunk), sign.encode(), chunk) for chunk, sign in pairs]
    return b"\r\n".join(lines) + trailer.encode() + b"\r\n"


def read(seed: str, body: bytes, *, signs_trailer: bool, size: int) -> bytes:
    reader = AwsChunkedReader(ChunkVerifier(key_of(seed)), signs_trailer=signs_trailer)
    content = b"".join(reader.feed(body[start : start + size]) for start in range(0, len(body), size))
    reader.finish()
    return content


@pytest.mark.parametrize("size", [1_000_000, 1000, 7])
@pytest.mark.parametrize("example", [PLAIN, WITH_TRAILER])
def test_published_signatures_are_right_however_the_body_is_cut(example, size: int) -> None:
    seed, signatures, trailer = example
    body = coded(CHUNKS, signatures, trailer)
    assert read(seed, body, signs_trailer=bool(trailer), size=size) == b"a" * 66_560


OTHERS = {
    "a changed byte": lambda body: body.replace(b"aaaa\r\n400", b"aaab\r\n400"),
    "a changed signature": lambda body: body.replace(b"chunk-signature=0055", b"chunk-signature=0056").replace(
        b"chunk-signature=1c13", b"chunk-signature=1c14"
    ),
    "no signatures": lambda body: body.replace(b";chunk-signature=", b";x="),
    "a chunk less": lambda body: body[: body.index(b"400;")] + body[body.index(b"\r\n0;") + 2 :],
    "another order": lambda body: (
        body[body.index(b"400;") : body.index(b"\r\n0;") + 2]
        + body[: body.index(b"400;")]
        + body[body.index(b"\r\n0;") + 2 :]
    ),
    "a signature in capitals": lambda body: body.replace(b"0055627c9e", b"0055627C9E").replace(
        b"1c1344b1", b"1C1344B1"
    ),
    "more after the signature": lambda body: body.replace(b"\r\n" + b"a" * 1024, b"00\r\n" + b"a" * 1024),
}


@pytest.mark.parametrize("change", OTHERS)
@pytest.mark.parametrize("example", [PLAIN, WITH_TRAILER])
def test_other_chunks_than_the_signed_ones_are_refused(example, change: str) -> None:
    seed, signatures, trailer = example
    body = coded(CHUNKS, signatures, trailer)
    changed = OTHERS[change](body)
    assert changed != body
    with pytest.raises(BadSignature):
        read(seed, changed, signs_trailer=bool(trailer), size=4096)


@pytest.mark.parametrize("trailer", ["", "x-amz-checksum-crc32c:sOO8/Q==\r\n", WITH_TRAILER[2].replace("sOO8", "sOO9")])
def test_another_trailer_than_the_signed_one_is_refused(trailer: str) -> None:
    seed, signatures, _ = WITH_TRAILER
    with pytest.raises(BadSignature):
        read(seed, coded(CHUNKS, signatures, trailer), signs_trailer=True, size=4096)


def test_the_key_is_not_in_its_repr() -> None:
    assert "key=" not in repr(key_of("x"))
