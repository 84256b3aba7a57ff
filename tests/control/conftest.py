"""Running control planes."""

from collections.abc import Iterator

import pytest

from tests.control.support import Platform, running_platform


@pytest.fixture
def platform() -> Iterator[Platform]:
    """A friendly one whose workers come at once."""
    with running_platform() as running:
        yield running


@pytest.fixture
def still_platform() -> Iterator[Platform]:
    """One that writes down what is asked, and does nothing about it."""
    with running_platform(reconciles=False) as running:
        yield running


@pytest.fixture
def strict_platform() -> Iterator[Platform]:
    """A strict one that does nothing."""
    with running_platform(is_strict=True, reconciles=False) as running:
        yield running
