"""Access keys in a store."""

from collections.abc import Iterator

import pytest

from headrace.platform.access_keys import AccessKeys
from headrace.state.sql import open_store


@pytest.fixture
def keys() -> Iterator[AccessKeys]:
    store = open_store("sqlite://")
    yield AccessKeys(store)
    store.close()


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
