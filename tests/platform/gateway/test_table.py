"""The routes in memory follow the store."""

import asyncio

import pytest

from headrace.core.errors import Unavailable
from headrace.platform.gateway.table import RouteTable
from tests.waiting import WAIT_S

from .routes import RouteStore, component, route, variant


@pytest.fixture
async def store():
    return RouteStore()


@pytest.fixture
async def table(store):
    made = RouteTable(store)
    await made.start()
    yield made
    await made.close()
    assert not store._listeners


async def test_existing_routes_are_read_at_the_start(store):
    store.put(route(endpoint="a"))
    table = RouteTable(store)
    await table.start()
    assert await table.route("a") == route(endpoint="a")
    assert await table.route("b") is None
    await table.close()


async def test_an_endpoint_is_found_as_soon_as_it_is_written(store, table):
    for number in range(20):
        store.put(route(endpoint=f"e{number}"))
        assert await table.route(f"e{number}") is not None


async def test_changes_and_removals_are_read(store, table):
    store.put(route(endpoint="a"))
    await table.settled()
    changed = route(variant("v", ["http://w"]), endpoint="a")
    store.put(changed)
    await table.settled()
    assert await table.route("a") == changed
    store.drop("a")
    await table.settled()
    assert await table.route("a") is None


async def test_writes_of_another_process_are_read_before_they_are_announced(store, table):
    store.put_elsewhere(route(endpoint="a"))
    assert not table.routes
    assert await table.read_again()
    assert set(table.routes) == {"a"}


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_write_that_comes_while_the_routes_are_read_is_read_next(store, table, monkeypatch, is_announced):
    listed, late = store.list, [route(endpoint="b")]

    def list_and_write(kind):
        found = listed(kind)
        if late:
            (store.put if is_announced else store.put_elsewhere)(late.pop())
        return found

    monkeypatch.setattr(store, "list", list_and_write)
    store.put(route(endpoint="a"))
    assert await table.settled()
    if is_announced:
        assert await table.settled()
        assert "b" in table.routes
    else:
        assert await table.route("b") is not None


async def test_an_endpoint_that_the_store_cannot_tell_of_is_not_called_unknown(store, table, monkeypatch):
    store.put(route(endpoint="a"))
    assert await table.route("a", is_newest=True) is not None

    def fail() -> int:
        raise Unavailable("The disk is full.")

    monkeypatch.setattr(store, "revision", fail)
    assert await table.route("a") is not None
    with pytest.raises(Unavailable):
        await table.route("b")
    with pytest.raises(Unavailable):
        await table.route("a", is_newest=True)


async def test_lookups_of_unknown_endpoints_do_not_read_the_store_each_time(store, table):
    for _ in range(10):
        assert await table.route("nowhere") is None
    assert store.num_reads == 1


async def test_the_name_of_a_component_does_not_ask_the_store(store, table):
    store.put(route(variant(), components=[component("c", [])]))
    await table.settled()
    before = store.num_revisions_read
    assert await table.route("c") is None
    assert table.components["c"] == "ep"
    assert store.num_revisions_read == before


async def test_lookups_of_unknown_endpoints_share_the_answer_of_the_store(store, table):
    before = store.num_revisions_read
    assert set(await asyncio.gather(*(table.route(f"nowhere-{number}") for number in range(100)))) == {None}
    assert store.num_revisions_read == before + 1


async def test_an_endpoint_that_is_written_while_the_store_is_asked_is_found(store, table):
    before = store.num_revisions_read
    store.answers.clear()
    early = asyncio.create_task(table.route("e"))
    while store.num_revisions_read == before:
        await asyncio.sleep(0.001)
    store.put_elsewhere(route(endpoint="e"))
    late = asyncio.create_task(table.route("e"))
    await asyncio.sleep(0)
    store.answers.set()
    await early
    assert await late is not None


async def test_listeners_are_called_after_each_read(store, table):
    seen = []
    table.on_change(lambda routes: seen.append(set(routes)))
    store.put(route(endpoint="a"))
    await table.settled()
    assert seen[-1] == {"a"}


async def test_an_unreadable_route_does_not_hide_the_others(store, table):
    store.put_unreadable("broken")
    store.put(route(endpoint="a"))
    await table.settled()
    assert await table.route("a") is not None
    assert await table.route("broken") is None


async def test_a_route_that_a_newer_headrace_has_written_goes_on_as_it_was(store, table):
    store.put(route(endpoint="a"))
    await table.settled()
    store.put_unreadable("a", is_newer=True)
    await table.settled()
    assert await table.route("a") is not None
    store.put_unreadable("a")
    await table.settled()
    assert await table.route("a") is None


async def test_a_failing_store_is_read_again(store, table, monkeypatch):
    monkeypatch.setattr("headrace.platform.gateway.table.RETRY_S", 0.01)
    store.put(route(endpoint="a"))
    await table.settled()
    store.failure = OSError("locked")
    store.put(route(endpoint="b"))
    await asyncio.sleep(0.03)
    assert await table.route("a") is not None
    store.failure = None
    async with asyncio.timeout(WAIT_S):
        await table.settled()
    assert await table.route("b") is not None
