"""Properties files mean what they mean to `java.util.Properties`, whose results are in the table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SettingsError
from headrace.serving.settings.properties_file import parse_properties, read_properties

CASES = [
    ("a=1\nb: 2\nc 3\nd\te\nf\n", {"a": "1", "b": "2", "c": "3", "d": "e", "f": ""}),
    (" \t\fa = x=y", {"a": "x=y"}),
    ("a : = b", {"a": "= b"}),
    ("a  b=c", {"a": "b=c"}),
    ("! no\n# no\\\na=1\n  # no\n", {"a": "1"}),
    ("a=1 # kept  ", {"a": "1 # kept  "}),
    ("s3\\://b/k\\=1=v", {"s3://b/k=1": "v"}),
    ("a=s3\\://b/k\\=1", {"a": "s3://b/k=1"}),
    ("a\\ b\\:c=\\ d", {"a b:c": " d"}),
    ("a=\\u00e9\\u00E9 \\ud83d\\ude00", {"a": "éé 😀"}),
    ('a=\\t\\n\\r\\f\\q\\\\\\"', {"a": '\t\n\r\fq\\"'}),
    ("a=\\x41\\b\\0", {"a": "x41b0"}),
    ("a=end\\\\\nb=2", {"a": "end\\", "b": "2"}),
    ("a=end\\\\", {"a": "end\\"}),
    ("a=end\\", {"a": "end"}),
    ("a=1,\\\n   2,\\\r\n\t3", {"a": "1,2,3"}),
    ("a=1\\\n# 2\nb=3", {"a": "1# 2", "b": "3"}),
    ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
    ("\\\n#no\na=1", {"a": "1"}),
    ("a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}),
    ("a=1\u2028b=2\x85c=3\x0bd\x1ce", {"a": "1\u2028b=2\x85c=3\x0bd\x1ce"}),
    ("a=1\na=2", {"a": "2"}),
    ("\ufeffa=1", {"a": "1"}),
    ("a=\\ud83d", {"a": "\ufffd"}),
    ("", {}),
]


@pytest.mark.parametrize(("text", "properties"), CASES)
def test_properties_are_read_as_java_reads_them(text, properties):
    assert parse_properties(text) == properties


@pytest.mark.parametrize("escape", ["\\u", "\\u00", "\\u00zz", "\\u 0e9"])
def test_an_escape_without_four_digits_is_refused_as_by_java(escape):
    with pytest.raises(SettingsError, match="expected four hexadecimal digits"):
        parse_properties(f"a={escape}")


@pytest.mark.parametrize(
    ("content", "value"),
    [(b"\xef\xbb\xbfa=\xc3\xa9", "é"), (b"a=\xc3\xa9", "é"), (b"a=\xe9", "é"), (b"a=\\u00e9", "é")],
    ids=["byte order mark", "UTF-8", "ISO-8859-1", "escaped"],
)
def test_the_first_key_and_every_letter_survive_the_encoding(content, value, tmp_path):
    path = tmp_path / "serving.properties"
    path.write_bytes(content)
    assert read_properties(path) == {"a": value}


def test_a_file_that_is_too_large_is_refused_and_a_missing_one_is_empty(tmp_path):
    assert read_properties(tmp_path / "missing") == {}
    (tmp_path / "large").write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(SettingsError, match="expected at most 1048576"):
        read_properties(tmp_path / "large")


@given(st.text("ab=: \t\f\\#!u0\n\r\u2028é", max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        properties = parse_properties(text)
    except SettingsError:
        return
    for part in (*properties, *properties.values()):
        assert part.encode().decode() == part, "no half of a character"
