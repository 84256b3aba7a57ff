"""Bodies as parts."""

from contextlib import suppress
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.serving.server.handlers.relay import body_parts, multipart_fields, urlencoded_fields

FORM = (
    b'--b1\r\nContent-Disposition: form-data; name="data"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    b'\x89\r\n--b\r\n\r\n--b1\r\ncontent-disposition: form-data; name="text"\r\n\r\nhello\r\n--b1--\r\n'
)


async def test_the_fields_of_a_form_are_parts() -> None:
    parts = await body_parts(FORM, "multipart/form-data; boundary=b1", reads_forms=True)
    assert [(part.name, part.content_type, bytes(part.content)) for part in parts] == [  # type: ignore[arg-type]
        ("data", "image/png", b"\x89\r\n--b\r\n"),
        ("text", None, b"hello"),
    ]
    parts = await body_parts(b"a=1&b=%C3%A9+x", "application/x-www-form-urlencoded", reads_forms=True)
    assert [(part.name, part.content) for part in parts] == [("a", b"1"), ("b", "é x".encode())]


async def test_any_other_body_is_one_part_with_its_content_type() -> None:
    for content_type, reads_forms in (("application/json; charset=utf-8", True), ("multipart/form-data", False)):
        (part,) = await body_parts(b"{}", content_type, reads_forms=reads_forms)
        assert (part.name, part.content_type, part.content) == ("", content_type, b"{}")


@pytest.mark.parametrize("body", [b"", b"--b1", b"--b1\r\n", FORM[:-20], b"no boundary"])
def test_a_malformed_form_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        list(multipart_fields(body, "b1"))


@given(st.binary(max_size=300))
def test_no_bytes_break_the_parser(body: bytes) -> None:
    for candidate in (body, b"--b1" + body, FORM[:60] + body + FORM[60:]):
        with suppress(InvalidRequest):
            list(multipart_fields(candidate, "b1"))


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"a&" * 1_000_000, "application/x-www-form-urlencoded"),
        (
            b'--b1\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * 100_000 + b"--b1--",
            "multipart/form-data; boundary=b1",
        ),
    ],
    ids=["urlencoded", "multipart"],
)
async def test_a_form_of_very_many_fields_is_refused(body: bytes, content_type: str) -> None:
    with pytest.raises(InvalidRequest, match="at most 1000"):
        await body_parts(body, content_type, reads_forms=True)


ATTACKS = {
    "a boundary of semicolons": (b"--x", 'multipart/form-data; boundary="' + ";" * 60_000, "at most 200"),
    "semicolons without a quote": (b"--x", "multipart/form-data" + ";" * 60_000 + "boundary=x", "32 parameters"),
    "a long boundary": (b"-" * 100_000, "multipart/form-data; boundary=" + "-" * 50_000, "at most 200"),
    "parameters of parts": (
        (b"--B\r\nContent-Disposition: form-data; " + b";" * 15_900 + b"\r\n\r\nx\r\n") * 100 + b"--B--",
        "multipart/form-data; boundary=B",
        "32 parameters",
    ),
    "headers of parts": (
        (b"--B\r\n" + b"a:b\r\n" * 3000 + b"\r\n\r\nx\r\n") * 100 + b"--B--",
        "multipart/form-data; boundary=B",
        "more than 16 headers",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_form_whose_headers_cost_time_is_refused_before_they_are_read(name: str) -> None:
    body, content_type, reason = ATTACKS[name]
    with pytest.raises(InvalidRequest, match=reason):
        await body_parts(body, content_type, reads_forms=True)


async def test_escaped_quotes_and_semicolons_belong_to_a_name() -> None:
    body = b'--b1\r\nContent-Disposition: form-data; filename="a;name=x"; name="a;\\"b"\r\n\r\n1\r\n--b1--'
    (part,) = await body_parts(body, 'multipart/form-data; charset="a;b"; boundary="b1"', reads_forms=True)
    assert part.name == 'a;"b'


@given(st.lists(st.sampled_from([b"%41", b"%", b"%4", b"a", b"+", b"%zz", b"\xe9"]), max_size=30), st.integers(0, 5))
def test_long_values_of_urlencoded_forms_are_decoded_as_by_the_standard_library(pieces: list[bytes], more: int) -> None:
    value = b"x" * (64 * 1024 - more) + b"".join(pieces)
    assert list(urlencoded_fields(b"a=" + value)) == [("a", unquote_to_bytes(value.replace(b"+", b" ")))]
