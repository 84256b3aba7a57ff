"""The lease on the database, checked while the platform runs."""

import asyncio

import pytest

from headrace.core.errors import SettingsError, Unavailable
from headrace.platform.lease import LeaseKeeper
from tests.waiting import WAIT_S


class FakeLease:
    """Fails as scripted, then succeeds."""

    def __init__(self, *answers: Exception) -> None:
        self.answers = list(answers)
        self.num_checks = 0

    def check(self) -> None:
        if self.answers:
            raise self.answers.pop(0)
        self.num_checks += 1

    def release(self) -> None:
        pass


async def test_an_unreachable_database_keeps_the_lease() -> None:
    lease = FakeLease(Unavailable("away"), Unavailable("still away"))
    keeper = LeaseKeeper(lease, check_s=0.001)
    keeping = asyncio.create_task(keeper.keep())
    async with asyncio.timeout(WAIT_S):
        while lease.num_checks < 2:
            await asyncio.sleep(0.001)
    assert not keeping.done()
    assert not keeper.is_lost
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping


async def test_a_lease_that_another_platform_took_ends_the_platform() -> None:
    keeper = LeaseKeeper(FakeLease(Unavailable("away"), SettingsError("taken")), check_s=0.001)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(SettingsError, match="taken"):
            await keeper.keep()
    assert keeper.is_lost
