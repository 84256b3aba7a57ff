"""Fixture of the scenarios: an endpoint that hosts components."""

from collections.abc import Iterator

import pytest

from tests.platform.control.components.scene import Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.store.close()
