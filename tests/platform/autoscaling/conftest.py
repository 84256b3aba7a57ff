"""A running control plane."""

from collections.abc import Iterator

import pytest

from tests.platform.control.support import Platform, running_platform
from tests.service_models import parsed_service_models

__all__ = ["parsed_service_models"]


@pytest.fixture
def still_platform() -> Iterator[Platform]:
    """A control plane without a reconciler: endpoints stay as they are written."""
    with running_platform(reconciles=False) as running:
        yield running
