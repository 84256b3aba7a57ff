"""Access keys in a store, and in the memory of a platform."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.core.errors import Unavailable
from headrace.platform.host.access_keys import MAX_AGE_S, AccessKeys, KeyRing
from headrace.platform.state.store import Store, open_store
from tests.waiting import WAIT_S

from .broken_store import out_of_reach


@pytest.fixture
def store() -> Iterator[Store]:
    opened = open_store("sqlite://")
    yield opened
    opened.close()


@pytest.fixture
def keys(store: Store) -> AccessKeys:
    return AccessKeys(store)


class Clock:
    """A clock that a test moves."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def age(self) -> None:
        self.now_s += MAX_AGE_S + 1


class SilentStore:
    """A store whose reads do not return until `answers` is set."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.answers = threading.Event()
        self.num_reads = 0

    def list(self, kind: Any) -> Any:
        self.num_reads += 1
        assert self.answers.wait(WAIT_S)
        return self._store.list(kind)


async def until_known(ring: KeyRing, key_id: str) -> None:
    """Wait without a request, which alone would not read the keys again."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                assert ring.secret_of(key_id) is not None
            except Unavailable:
                await asyncio.sleep(0.01)
            else:
                return


def test_a_key_is_created_listed_and_removed(keys: AccessKeys) -> None:
    made = keys.create(note="the CI machine")
    assert keys.list() == [made]
    assert (made.note, len(made.key_id), made.key_id[:4]) == ("the CI machine", 20, "HRAK")
    assert len(made.secret) == 40
    assert keys.remove(made.key_id)
    assert keys.list() == []
    assert not keys.remove(made.key_id)


def test_a_secret_is_not_in_the_repr_of_a_key(keys: AccessKeys) -> None:
    made = keys.create()
    assert made.secret not in repr(made)
    assert keys.create().secret != made.secret


async def test_a_removed_key_is_soon_refused(store: Store, keys: AccessKeys) -> None:
    made, clock = keys.create(), Clock()
    ring = KeyRing(store, clock=clock)
    await ring.refresh()
    assert (ring.secret_of(made.key_id), ring.key_of(made.secret)) == (made.secret, made.key_id)
    keys.remove(made.key_id)
    clock.age()
    await ring.refresh()
    assert (ring.secret_of(made.key_id), ring.key_of(made.secret)) == (None, None)


async def test_keys_are_kept_while_the_database_is_out_of_reach(store: Store, keys: AccessKeys) -> None:
    made, clock = keys.create(), Clock()
    ring, unread = KeyRing(store, clock=clock), KeyRing(store)
    await ring.refresh()
    later = keys.create()
    clock.age()
    with out_of_reach(store):
        for asked in (ring, unread):
            await asked.refresh()
            with pytest.raises(Unavailable, match="out of reach"):
                asked.secret_of(later.key_id)
            with pytest.raises(Unavailable, match="out of reach"):
                asked.key_of(later.secret)
        assert (ring.secret_of(made.key_id), ring.key_of(made.secret)) == (made.secret, made.key_id)
    for asked in (ring, unread):
        await until_known(asked, later.key_id)
        assert asked.secret_of("HRAKUNKNOWN") is None


async def test_a_database_that_does_not_answer_is_waited_for_once(store: Store, keys: AccessKeys) -> None:
    made = keys.create()
    silent: Any = SilentStore(store)
    ring = KeyRing(silent, patience_s=0.001)
    for _ in range(100):
        await ring.refresh()
        with pytest.raises(Unavailable):
            ring.secret_of(made.key_id)
    assert silent.num_reads == 1
    silent.answers.set()
    await until_known(ring, made.key_id)


async def test_requests_that_wait_for_the_keys_share_one_read(store: Store, keys: AccessKeys) -> None:
    made = keys.create()
    silent: Any = SilentStore(store)
    ring = KeyRing(silent, patience_s=WAIT_S)
    waiting = asyncio.gather(*(ring.refresh() for _ in range(10)))
    await asyncio.sleep(0)
    silent.answers.set()
    await waiting
    assert (ring.secret_of(made.key_id), silent.num_reads) == (made.secret, 1)
