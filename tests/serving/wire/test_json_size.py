"""Values of a JSON body, counted without decoding it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import PayloadTooLarge
from headrace.serving.wire.json_count import _BLOCK_BYTES, count_json
from headrace.serving.wire.json_size import check_json_size

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet=st.sampled_from('a,:[{"\\\\\u00e9'), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='[{,:"\\\\', max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def _containers(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_containers, value.values()))
    return 1 + sum(map(_containers, value)) if isinstance(value, list) else 0


def _members(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_members, value.values()))
    return sum(map(_members, value)) if isinstance(value, list) else 0


@given(JSON)
def test_the_count_is_that_of_the_decoded_value(value):
    for is_ascii in (True, False):
        containers, _, members, _ = count_json(json.dumps(value, ensure_ascii=is_ascii).encode())
        assert (containers, members) == (_containers(value), _members(value))


def test_strings_may_go_on_over_blocks_and_end_in_escapes_at_their_edge():
    for shift in range(4):
        text = "[,{" * (_BLOCK_BYTES // 3) + " " * shift + '\\"' * 10 + "[" * _BLOCK_BYTES
        assert count_json(json.dumps({"a": [text, text]}).encode()) == (2, 3, 1, 0)


def test_a_long_text_full_of_commas_is_one_value():
    check_json_size(json.dumps({"prompt": "a, b, [c], {d}" * 500_000}).encode())


def test_many_object_members_are_refused():
    body = json.dumps({"logit_bias": dict.fromkeys(map(str, range(100_001)), 1)}).encode()
    with pytest.raises(PayloadTooLarge, match="100002 object members; expected at most 100000"):
        check_json_size(body)


@pytest.mark.parametrize(
    ("number", "is_hard"),
    [
        ("1e308", True),
        ("1E+308", True),
        ("2.5e-0307", True),
        ("9007199254740993.0001", True),
        ("1" * 60_000, True),
        ("1e22", False),
        ("true", False),
        ("1.234567890123456", False),
        ('"1e308"', False),
        ('"escape100 12345678901234567890"', False),
    ],
)
def test_numbers_that_take_long_to_decode_are_counted(number, is_hard):
    assert count_json(f'{{"x": [{number}, 5, {number}, false]}}'.encode())[3] == 2 * is_hard


def test_many_numbers_that_take_long_to_decode_are_refused():
    check_json_size(b"[" + b"1e308," * 3_999 + b"1]")
    with pytest.raises(PayloadTooLarge, match="4001 numbers of 20 digits"):
        check_json_size(b"[" + b"1e308," * 4_001 + b"1]")
