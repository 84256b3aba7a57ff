"""Stores of all kinds, on which the same tests run."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.platform.state.store import Store, open_store
from tests.postgresql import new_database, postgresql_server

from .leases import long_leases, patient_database

__all__ = ["long_leases", "new_database", "patient_database", "postgresql_server"]


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(params=["sqlite", "memory", "postgresql"])
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Location of a new store of each kind."""
    return _place(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def lasting_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Location of a new store that outlives its process."""
    return _place(request, tmp_path)


def _place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("new_database")())
    return "sqlite://" if request.param == "memory" else str(tmp_path / "data" / "state.db")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(any_place: str, clock: Clock) -> Iterator[Store]:
    with contextlib.closing(open_store(any_place, now_s=clock)) as opened:
        yield opened
