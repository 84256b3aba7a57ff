"""Keeps the right to act on the store, as long as the platform lives."""

import asyncio
from contextlib import suppress

from headrace.core.errors import SettingsError, Unavailable
from headrace.state.sole_use import SoleUse

CHECK_S = 10.0
"""Between two looks. A database that was started again has let go of the lock, and another platform may take it."""


class Claim:
    """On one store."""

    def __init__(self, sole_use: SoleUse, *, check_s: float = CHECK_S) -> None:
        self._sole_use = sole_use
        self._check_s = check_s
        self.is_lost = False
        """Whether another platform has it."""

    async def keep(self) -> None:
        """
        Look at it, for ever.

        Raises:
            SettingsError: another platform has taken it while the database, or the way to it, was away.
        """
        while True:
            await asyncio.sleep(self._check_s)
            try:
                with suppress(Unavailable):  # nobody can act then; those who want to say so
                    await asyncio.to_thread(self._sole_use.check)
            except SettingsError:
                self.is_lost = True
                raise
