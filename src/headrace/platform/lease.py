"""Renewal of the platform's lease on its database."""

import asyncio
from contextlib import suppress

from headrace.core.errors import SettingsError, Unavailable
from headrace.state.database_lease import DatabaseLease

CHECK_S = 10.0
"""Seconds between checks. A restarted database has dropped the lock, and another platform may take it."""


class LeaseKeeper:
    """Checks the lease on the database while the platform runs."""

    def __init__(self, lease: DatabaseLease, *, check_s: float = CHECK_S) -> None:
        self._lease = lease
        self._check_s = check_s
        self.is_lost = False
        """True if another platform has taken the lease."""

    async def keep(self) -> None:
        """
        Check the lease until cancelled.

        Raises:
            SettingsError: another platform took it while the database, or the network to it, was down.
        """
        while True:
            await asyncio.sleep(self._check_s)
            try:
                with suppress(Unavailable):  # writes fail then, too, and their callers report it
                    await asyncio.to_thread(self._lease.check)
            except SettingsError:
                self.is_lost = True
                raise
