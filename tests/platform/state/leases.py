"""Leases that last longer than a test, however slow the machine is."""

from collections.abc import Iterator

import pytest

from headrace.platform.state import coordination, database

LONG_S = 3600.0


@pytest.fixture
def long_leases() -> Iterator[None]:
    """Let members live, and statements wait, as long as a test needs; a test may shorten both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordination, "LEASE_S", LONG_S)
        patch.setattr(coordination, "_WAIT_S", int(LONG_S))
        yield


@pytest.fixture(scope="package", autouse=True)
def patient_database() -> Iterator[None]:
    """Let a transaction stay open while its test waits for a processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_IDLE_TRANSACTION_S", int(LONG_S))
        yield
