"""One paginator for the lists of all services."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.paging import Paginator

PAGES = Paginator(invalid_token=lambda: AwsError("InvalidNextToken", "not one of this list"))


def page(items: list[int], params: dict[str, Any], *, is_descending: bool = False) -> tuple[list[int], dict[str, str]]:
    return PAGES.page(items, params, listing="numbers", key=lambda item: (item,), size=2, is_descending=is_descending)


def token_of(*values: Any) -> dict[str, str]:
    return {"NextToken": base64.urlsafe_b64encode(json.dumps(values).encode()).decode()}


@given(items=st.sets(st.integers(0, 20)), is_descending=st.booleans())
def test_all_pages_together_contain_every_item_once_and_in_order(items: set[int], is_descending: bool) -> None:
    chosen, params = page(list(items), {}, is_descending=is_descending)
    found = chosen
    while params:
        chosen, params = page(list(items), params, is_descending=is_descending)
        assert 1 <= len(chosen) <= 2
        found += chosen
    assert found == sorted(items, reverse=is_descending)


@given(items=st.sets(st.integers(0, 20), min_size=3), new=st.sets(st.integers(0, 20)))
def test_items_that_come_and_go_between_two_pages_shift_no_others(items: set[int], new: set[int]) -> None:
    first, params = page(list(items), {})
    later = (items - set(first)) | new
    second, _ = page(list(later), params)
    assert second == sorted(item for item in later if item > first[-1])[:2]


@pytest.mark.parametrize(
    "params",
    [
        {"NextToken": "?"},
        {"NextToken": "nonsense"},
        {"NextToken": base64.urlsafe_b64encode(b"[" * 100_000).decode()},
        token_of(),
        token_of("numbers"),
        token_of("numbers", "a text"),
        token_of("numbers", 1, 2),
        token_of("numbers", None),
        token_of("numbers", [1]),
        token_of("letters", 1),
        token_of({"numbers": 1}),
    ],
    ids=lambda params: params["NextToken"][:30],
)
def test_a_token_of_another_list_is_refused(params: dict[str, str]) -> None:
    with pytest.raises(AwsError, match="not one of this list"):
        page([1, 2, 3], params)


def test_an_offset_comes_back_from_its_token() -> None:
    params = PAGES.token_at(7, listing="points")
    assert PAGES.begin(params, listing="points") == 7
    assert PAGES.begin({}, listing="points") == 0


@pytest.mark.parametrize("values", [("points", -1), ("points", "1"), ("points", 1.5), ("points",), ("numbers", 1)])
def test_a_token_without_an_offset_of_this_list_is_refused(values: tuple[Any, ...]) -> None:
    with pytest.raises(AwsError, match="not one of this list"):
        PAGES.begin(token_of(*values), listing="points")
