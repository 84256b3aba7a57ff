"""Parsing and formatting of sizes in bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1", 1),
        ("2GiB", 2 << 30),
        ("2g", 2 << 30),
        ("500MB", 500_000_000),
        ("1.5 KiB", 1536),
        ("3T", 3 << 40),
        ("7B", 7),
    ],
)
def test_sizes_are_read_as_people_write_them(text, num_bytes):
    assert parse_size(text) == num_bytes


@given(st.integers(0, 1 << 50))
def test_a_shown_size_reads_back_as_about_the_same(num_bytes):
    assert parse_size(format_size(num_bytes)) == pytest.approx(num_bytes, rel=0.06)
