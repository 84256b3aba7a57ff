"""Logging is that of the process: tests that set it up leave the default to others."""

from collections.abc import Iterator

import pytest

from headrace.core.telemetry import setup_logging


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    yield
    setup_logging()
