"""Forms that arrive in pieces of any size, and forms that are none."""

import pytest

from headrace.core.errors import InvalidRequest
from headrace.serving.wire.multipart import MAX_PARTS, FormReader, PartHead

KIND = "multipart/form-data; boundary=xY"
FORM = (
    b'--xY\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--xY\r\ncontent-disposition: form-data; name="file"; filename="a b.jsonl"\r\nContent-Type: text/plain\r\n\r\n'
    b"one\r\n--xZ\r\n\r\ntwo\n\r\n"
    b'--xY\r\nContent-Disposition: form-data; name="empty"\r\n\r\n\r\n--xY--\r\nepilogue --xY'
)


def parts_of(pieces):
    reader, parts = FormReader(KIND), []
    for piece in pieces:
        for found in reader.feed(piece):
            if isinstance(found, PartHead):
                parts.append([found, b""])
            else:
                parts[-1][1] += found
    return reader, [(head.name, head.filename, content) for head, content in parts]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, len(FORM)])
def test_a_form_has_the_same_parts_however_it_is_cut(size):
    reader, parts = parts_of(FORM[at : at + size] for at in range(0, len(FORM), size))
    assert parts == [
        ("purpose", "", b"batch"),
        ("file", "a b.jsonl", b"one\r\n--xZ\r\n\r\ntwo\n"),
        ("empty", "", b""),
    ]
    assert reader.is_complete


def test_a_long_content_is_passed_on_as_it_arrives():
    reader = FormReader(KIND)
    assert len(list(reader.feed(FORM.partition(b"one")[0]))) == 3
    assert sum(map(len, reader.feed(b"x" * 100_000))) > 99_000
    assert not reader.is_complete


HEAD = b'--xY\r\nContent-Disposition: form-data; name="a"\r\n\r\n'


@pytest.mark.parametrize(
    ("kind", "form", "said"),
    [
        ("application/json", b"{}", "expected multipart/form-data"),
        ("", b"{}", "expected multipart/form-data"),
        ("multipart/form-data", b"", "boundary of the form has 0 characters"),
        (f"multipart/form-data; boundary={'x' * 201}", b"", "201 characters"),
        (KIND, b"--xY\r\nX-Name: a\r\n\r\n", "no Content-Disposition"),
        (KIND, b"--xY\r\n" + b"a" * 9000, "head of 8192 bytes or more"),
        (KIND, (HEAD + b"\r\n") * (MAX_PARTS + 1), "more than 16 parts"),
        (KIND, b'--xY\r\nContent-Disposition: form-data; name="a"' + b"; b=c" * 40 + b"\r\n\r\n", "parameters"),
    ],
)
def test_what_is_no_form_is_refused(kind, form, said):
    with pytest.raises(InvalidRequest, match=said):
        list(FormReader(kind).feed(form))


def test_a_form_that_ends_early_is_not_complete():
    reader, parts = parts_of([b"preamble\r\n" + HEAD + b"half"])
    assert (reader.is_complete, parts) == (False, [("a", "", b"")])  # what may begin a boundary is held back
