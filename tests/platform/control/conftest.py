"""Fixtures of running control planes."""

from collections.abc import Iterator

import pytest

from tests.platform.control.support import Platform, running_platform
from tests.service_models import parsed_service_models

__all__ = ["parsed_service_models"]


@pytest.fixture
def platform() -> Iterator[Platform]:
    """A control plane in friendly mode whose workers are ready at once."""
    with running_platform() as running:
        yield running


@pytest.fixture
def still_platform() -> Iterator[Platform]:
    """A control plane that stores desired states and does not reconcile."""
    with running_platform(reconciles=False) as running:
        yield running


@pytest.fixture
def strict_platform() -> Iterator[Platform]:
    """A control plane in strict mode that does not reconcile."""
    with running_platform(is_strict=True, reconciles=False) as running:
        yield running
