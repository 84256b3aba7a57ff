"""Filters, order and pages of List operations, on a store."""

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.platform.control.api.context import list_page
from headrace.platform.state.records import Kind, NoStatus, Record, RecordPart
from headrace.platform.state.selection import Selection
from headrace.platform.state.store import Store, open_store
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.paging import Paginator

NAMES = st.text("abcXY-", min_size=1, max_size=3)
THINGS = st.dictionaries(NAMES, st.tuples(st.integers(0, 3), st.sampled_from(["InService", "Failed"])), max_size=12)
ORDERS = ("Name", "CreationTime", "Status")


class ThingSpec(RecordPart, frozen=True, kw_only=True):
    """A spec that counts how often it is decoded."""

    num_decoded: ClassVar[list[int]] = []
    status: str

    def __post_init__(self) -> None:
        self.num_decoded.append(1)


THING = Kind("thing", ThingSpec, NoStatus)


@contextmanager
def stored(things: dict[str, tuple[int, str]]) -> Iterator[Store]:
    times = iter([float(when) for when, _ in things.values()])
    store = open_store("sqlite://", now_s=lambda: next(times))
    try:
        for name, (_, status) in things.items():
            store.create(THING, name, spec=ThingSpec(status=status))
        yield store
    finally:
        store.close()


def reader(store: Store) -> Callable[[Selection], Iterator[dict[str, Any]]]:
    def read(selection: Selection) -> Iterator[dict[str, Any]]:
        for record in store.each(THING, selection):
            assert isinstance(record, Record)
            yield {
                "ThingName": record.name,
                "CreationTime": record.created_s,
                "LastModifiedTime": record.modified_s,
                "ThingStatus": record.spec.status,
            }

    return read


def pages(store: Store, params: dict[str, Any]) -> Iterator[list[str]]:
    asked = dict(params)
    while True:
        page = list_page(reader(store), asked, word="Thing")
        yield [thing["ThingName"] for thing in page["Things"]]
        if "NextToken" not in page:
            return
        asked["NextToken"] = page["NextToken"]


@given(
    things=THINGS,
    sort_by=st.sampled_from(ORDERS),
    order=st.sampled_from(["Ascending", "Descending"]),
    number=st.integers(1, 5),
)
def test_pages_have_every_resource_once_and_in_order(
    things: dict[str, tuple[int, str]], sort_by: str, order: str, number: int
) -> None:
    keys: dict[str, Callable[[str], Any]] = {
        "Name": lambda name: name,
        "CreationTime": lambda name: (things[name][0], name),
        "Status": lambda name: (things[name][1], name),
    }
    with stored(things) as store:
        found = list(pages(store, {"SortBy": sort_by, "SortOrder": order, "MaxResults": number}))
    assert all(len(page) <= number for page in found)
    assert [name for page in found for name in page] == sorted(things, key=keys[sort_by], reverse=order == "Descending")


@given(
    things=THINGS,
    part=st.text("abxy", max_size=2),
    bounds=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    status=st.sampled_from(["InService", "Failed"]),
)
def test_filters_keep_what_fits_all_of_them(
    things: dict[str, tuple[int, str]], part: str, bounds: tuple[int, int], status: str
) -> None:
    after, before = bounds
    params = {"NameContains": part, "CreationTimeAfter": after, "LastModifiedTimeBefore": before}
    with stored(things) as store:
        found = [name for page in pages(store, {**params, "StatusEquals": status, "MaxResults": 2}) for name in page]
    expected = {
        name for name, (when, of) in things.items() if part in name.lower() and after < when < before and of == status
    }
    assert sorted(found) == sorted(expected)


@given(things=THINGS)
def test_creations_and_deletions_between_pages_shift_nothing(things: dict[str, tuple[int, str]]) -> None:
    params: dict[str, Any] = {"SortBy": "Name", "SortOrder": "Ascending", "MaxResults": 2}
    with stored(things) as store:
        first = list_page(reader(store), params, word="Thing")
        if "NextToken" not in first:
            return
        for thing in first["Things"]:
            record = store.get(THING, thing["ThingName"])
            assert record is not None
            store.remove(record)
        left = {record.name for record in store.list(THING)}
        rest = list_page(reader(store), {**params, "MaxResults": 100, "NextToken": first["NextToken"]}, word="Thing")
    assert [thing["ThingName"] for thing in rest["Things"]] == sorted(left)


@pytest.mark.parametrize("sort_by", ["Name", "CreationTime"])
def test_a_page_of_one_decodes_a_batch_and_not_all_records(sort_by: str) -> None:
    with stored({f"thing-{number}": (number, "Failed") for number in range(300)}) as store:
        ThingSpec.num_decoded.clear()
        assert len(list_page(reader(store), {"MaxResults": 1, "SortBy": sort_by}, word="Thing")["Things"]) == 1
        assert len(ThingSpec.num_decoded) < 20


@pytest.mark.parametrize(
    "key",
    [("a",), (1.0,), ("a", 1.0), (1.0, "\ud800"), (1.0, "\0"), (10**400, "a"), (float("inf"), "a"), ()],
    ids=lambda key: ascii(key)[:20],
)
def test_a_forged_token_is_refused(key: Sequence[Any]) -> None:
    pages_of_things = Paginator(invalid_token=lambda: AwsError("ValidationException", ""))
    token = pages_of_things._token("Things by CreationTime", tuple(key))
    with stored({"a": (1, "Failed")}) as store, pytest.raises(AwsError):
        list_page(reader(store), token, word="Thing")


def test_no_operation_reads_all_records_of_a_kind_at_once() -> None:
    """`Store.list` decodes everything, and 16 calls at once decode it 16 times."""
    root = Path(headrace.__file__).parent / "platform"
    files = [file for package in ("control", "autoscaling", "cloudwatch") for file in (root / package).glob("api/*.py")]
    assert len(files) > 15
    calls = [
        f"{file.relative_to(root)}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "list"
        and ast.unparse(node.func.value).endswith("store")
    ]
    assert calls == []
