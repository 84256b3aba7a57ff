"""The store of responses: what it keeps within its bounds, and the pages of items."""

import json
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest, PayloadTooLarge
from headrace.serving.wire.json_size import INLINE_BYTES
from headrace.serving.wire.openai.responses import OpenAIResponses
from headrace.serving.wire.openai.stored_responses import ResponseKey, ResponseMemory, StoredResponse, item_page, joined
from tests.serving.wire.samples import CONTEXT, body

MAX_BYTES = 8000
MAX_AGE_S = 100.0
ITEMS = json.dumps([{"id": f"msg_{number}"} for number in range(5)]).encode()


def entry(num_bytes=0, *, created_s=0.0):
    return StoredResponse(response=b"r" * num_bytes, items=b"[]", created_s=created_s)


def key_of(name, owner=""):
    return ResponseKey(owner, str(name))


@given(
    st.lists(st.tuples(st.sampled_from("agd"), st.integers(0, 9), st.integers(0, 9000), st.floats(0, 50)), max_size=60)
)
def test_the_store_keeps_its_bounds(calls):
    store = ResponseMemory(max_bytes=MAX_BYTES, max_age_s=MAX_AGE_S)
    added, now_s = {}, 0.0
    for call, name, num_bytes, wait_s in calls:
        now_s += wait_s
        if call == "a":
            added[key_of(name)] = entry(num_bytes, created_s=now_s)
            store.add(key_of(name), added[key_of(name)])
        elif call == "d":
            store.delete(key_of(name), now_s=now_s)
            added.pop(key_of(name), None)
        kept = {key: found for key in map(key_of, range(10)) if (found := store.get(key, now_s=now_s)) is not None}
        assert all(added[key] == found for key, found in kept.items())
        assert all(now_s - found.created_s <= MAX_AGE_S for found in kept.values())
        assert len(store) == len(kept)
        assert store.num_bytes == sum(found.num_bytes for found in kept.values()) <= MAX_BYTES


def test_the_least_recently_used_goes_first():
    store = ResponseMemory(max_bytes=entry().num_bytes * 2, max_age_s=MAX_AGE_S)
    store.add(key_of("a"), entry())
    store.add(key_of("b"), entry())
    assert store.get(key_of("a"), now_s=0) is not None
    store.add(key_of("c"), entry())
    assert [store.get(key_of(name), now_s=0) is not None for name in "abc"] == [True, False, True]


def test_a_body_weighs_the_conversation_that_it_continues():
    store = ResponseMemory(max_bytes=MAX_BYTES, max_age_s=MAX_AGE_S)
    store.add(key_of("resp_1"), entry(5000))
    weigh = OpenAIResponses(store).num_stored_bytes
    assert weigh(b'{"previous_response_id": "resp_1"}', 0) == entry(5000).num_bytes
    for other in (
        b'{"previous_response_id": "resp_2"}',
        b'{"previous_response_id": 1}',
        b"{}",
        b"previous_response_id",
        b'{"previous_response_id": "resp_1", "input": "%b"}' % (b"x" * INLINE_BYTES),  # not decoded on the event loop
    ):
        assert weigh(other, 0) == 0


def test_a_conversation_of_too_many_values_is_not_continued():
    store = ResponseMemory(max_bytes=1 << 20, max_age_s=MAX_AGE_S)
    items = b"[%b]" % b",".join([b"[]"] * 60_000)
    response = b'{"output": [], "status": "completed"}'
    store.add(key_of("resp_1"), StoredResponse(response=response, items=items, created_s=CONTEXT.created_s))
    with pytest.raises(PayloadTooLarge, match="'previous_response_id' continues has 60001 objects and lists"):
        OpenAIResponses(store).parse(body(input="x", previous_response_id="resp_1"), CONTEXT)


def test_owners_do_not_see_each_others_responses():
    store = ResponseMemory(max_bytes=MAX_BYTES, max_age_s=MAX_AGE_S)
    store.add(key_of("a", "ann"), entry(created_s=1.0))
    store.add(key_of("a", "bob"), entry(created_s=2.0))
    assert not store.delete(key_of("a"), now_s=2)
    assert store.delete(key_of("a", "ann"), now_s=2)
    assert [store.get(key_of("a", owner), now_s=2) for owner in ("ann", "bob")] == [None, entry(created_s=2.0)]


@given(st.lists(st.lists(st.integers(), max_size=3), max_size=4), st.sampled_from([None, 2]))
def test_arrays_are_joined(arrays, indent):
    assert json.loads(joined([json.dumps(array, indent=indent).encode() for array in arrays])) == [*chain(*arrays)]


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ({}, "43210", False),
        ({"order": "asc"}, "01234", False),
        ({"limit": "2"}, "43", True),
        ({"limit": "2", "after": "msg_3"}, "21", True),
        ({"order": "asc", "after": "msg_4"}, "", False),
    ],
)
def test_items_are_listed_in_pages(query, ids, has_more):
    page = json.loads(item_page(ITEMS, **{"limit": "20", "order": "desc", "after": None, **query}))
    assert [item["id"] for item in page["data"]] == [f"msg_{number}" for number in ids]
    assert (page["has_more"], page["first_id"]) == (has_more, f"msg_{ids[0]}" if ids else None)


@pytest.mark.parametrize(
    ("param", "value"), [("limit", "0"), ("limit", "101"), ("limit", "x"), ("order", "up"), ("after", "msg_9")]
)
def test_a_wrong_argument_of_a_page_is_named(param, value):
    with pytest.raises(InvalidRequest) as raised:
        item_page(ITEMS, **{"limit": "20", "order": "desc", "after": None, param: value})
    assert raised.value.param == param
