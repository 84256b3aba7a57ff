"""Filters, order and pages of List operations."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.control.api.listing import Listed, list_page

NAMES = st.text("abcXY-", min_size=1, max_size=3)
THINGS = st.dictionaries(NAMES, st.tuples(st.integers(0, 3), st.sampled_from(["InService", "Failed"])), max_size=12)


def listed(things: dict[str, tuple[int, str]]) -> list[Listed]:
    return [
        Listed(name=name, created_s=float(when), modified_s=float(when), status=status, summary={"n": name})
        for name, (when, status) in things.items()
    ]


@given(
    things=THINGS,
    sort_by=st.sampled_from(["Name", "CreationTime", "Status"]),
    order=st.sampled_from(["Ascending", "Descending"]),
    number=st.integers(1, 5),
)
def test_pages_have_every_resource_once_and_in_order(
    things: dict[str, tuple[int, str]], sort_by: str, order: str, number: int
) -> None:
    params: dict[str, Any] = {"SortBy": sort_by, "SortOrder": order, "MaxResults": number}
    found: list[str] = []
    while True:
        page = list_page(listed(things), params, member="Things")
        assert len(page["Things"]) <= number
        found += [thing["n"] for thing in page["Things"]]
        if "NextToken" not in page:
            break
        params["NextToken"] = page["NextToken"]
    keys: dict[str, Any] = {"Name": lambda name: name, "CreationTime": lambda name: (things[name][0], name)}
    keys["Status"] = lambda name: (things[name][1], name)
    assert found == sorted(things, key=keys[sort_by], reverse=order == "Descending")


@given(things=THINGS)
def test_creations_and_deletions_between_pages_shift_nothing(things: dict[str, tuple[int, str]]) -> None:
    params: dict[str, Any] = {"SortBy": "Name", "SortOrder": "Ascending", "MaxResults": 2}
    first = list_page(listed(things), params, member="Things")
    if "NextToken" not in first:
        return
    seen = [thing["n"] for thing in first["Things"]]
    left = {name: value for name, value in things.items() if name not in seen}
    rest = list_page(listed(left), {**params, "MaxResults": 100, "NextToken": first["NextToken"]}, member="Things")
    assert [thing["n"] for thing in rest["Things"]] == sorted(left)
