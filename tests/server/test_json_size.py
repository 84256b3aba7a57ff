"""Values of a JSON body, counted without decoding it."""

import json

from hypothesis import given
from hypothesis import strategies as st

from headrace.server.json_size import _BLOCK_BYTES, check_json_size, count_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet=st.sampled_from('a,[{"\\\\\u00e9'), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='[{,"\\\\', max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def _containers(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_containers, value.values()))
    return 1 + sum(map(_containers, value)) if isinstance(value, list) else 0


@given(JSON)
def test_the_count_is_that_of_the_decoded_value(value):
    assert count_json(json.dumps(value).encode())[0] == _containers(value)
    assert count_json(json.dumps(value, ensure_ascii=False).encode())[0] == _containers(value)


def test_strings_may_go_on_over_blocks_and_end_in_escapes_at_their_edge():
    for shift in range(4):
        text = "[,{" * (_BLOCK_BYTES // 3) + " " * shift + '\\"' * 10 + "[" * _BLOCK_BYTES
        assert count_json(json.dumps({"a": [text, text]}).encode()) == (2, 3)


def test_a_long_text_full_of_commas_is_one_value():
    check_json_size(json.dumps({"prompt": "a, b, [c], {d}" * 500_000}).encode())
