"""The right to act on the store, kept while the platform lives."""

import asyncio

import pytest

from headrace.core.errors import SettingsError, Unavailable
from headrace.platform.claim import Claim
from tests.waiting import WAIT_S


class PlayedRight:
    """Answers as it was told, then well."""

    def __init__(self, *answers: Exception) -> None:
        self.answers = list(answers)
        self.num_well = 0

    def check(self) -> None:
        if self.answers:
            raise self.answers.pop(0)
        self.num_well += 1

    def release(self) -> None:
        pass


async def test_a_database_that_is_away_is_waited_for() -> None:
    right = PlayedRight(Unavailable("away"), Unavailable("still away"))
    claim = Claim(right, check_s=0.001)
    keeping = asyncio.create_task(claim.keep())
    async with asyncio.timeout(WAIT_S):
        while right.num_well < 2:
            await asyncio.sleep(0.001)
    assert not keeping.done()
    assert not claim.is_lost
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping


async def test_a_right_that_another_one_has_ends_it() -> None:
    claim = Claim(PlayedRight(Unavailable("away"), SettingsError("taken")), check_s=0.001)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(SettingsError, match="taken"):
            await claim.keep()
    assert claim.is_lost
