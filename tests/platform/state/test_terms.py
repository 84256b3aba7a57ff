"""Writes of a leader whose term is over are refused."""

import contextlib

import pytest

from headrace.platform.state.records import Conflict, Fenced, Record
from headrace.platform.state.store import Store, open_store

from .kinds import MODEL

SPEC = {"a": 1}


def test_a_later_term_refuses_every_write_of_an_earlier_one(lasting_place: str) -> None:
    with (
        contextlib.closing(open_store(lasting_place)) as first,
        contextlib.closing(open_store(lasting_place)) as second,
    ):
        first.begin_term(1)
        old = first.fenced(1)
        made = old.create(MODEL, "one", spec=SPEC)
        second.begin_term(2)
        with pytest.raises(Fenced, match="term 2"):
            old.create(MODEL, "two", spec=SPEC)
        with pytest.raises(Fenced):
            old.update(made, spec={"a": 2})
        with pytest.raises(Fenced):
            old.remove(made)
        assert second.get(MODEL, "one") == made
        assert second.get(MODEL, "two") is None


def test_a_write_without_a_term_is_never_fenced(store: Store) -> None:
    store.begin_term(5)
    assert isinstance(store.create(MODEL, "one", spec=SPEC), Record)


def test_a_term_that_is_over_cannot_begin(store: Store) -> None:
    store.begin_term(3)
    store.begin_term(3)
    with pytest.raises(Fenced, match="term 3 has begun"):
        store.begin_term(2)
    assert store.term() == 3


def test_a_fenced_write_is_a_conflict_for_the_loops() -> None:
    assert issubclass(Fenced, Conflict)


def test_a_fenced_store_tells_the_listeners_of_its_origin(store: Store) -> None:
    told: list[int] = []
    store.subscribe(lambda: told.append(1))
    store.begin_term(1)
    store.fenced(1).create(MODEL, "one", spec=SPEC)
    assert told == [1]
