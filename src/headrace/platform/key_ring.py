"""Access keys cached in memory for authentication, and read again after a second."""

import asyncio
import time
from collections.abc import Callable, Collection

from headrace.control.access_keys import AccessKeys
from headrace.state.store import Store

MAX_AGE_S = 1.0
"""Seconds until a removed key is refused: `headrace keys` is another process, whose writes send no signal."""


class KeyRing:
    """A cache of the secrets by access key."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = AccessKeys(store)
        self._clock = clock
        self._secrets: dict[str, str] = {}
        self._read_s: float | None = None
        self._reading = asyncio.Lock()

    async def refresh(self) -> None:
        """Read the keys again if they are older than `MAX_AGE_S`."""
        async with self._reading:
            if self._read_s is None or self._clock() - self._read_s > MAX_AGE_S:
                found = await asyncio.to_thread(self._keys.list)
                self._secrets = {key.key_id: key.secret for key in found}
                self._read_s = self._clock()

    def secret_of(self, access_key: str) -> str | None:
        """Return the secret of a key; None if there is no such key."""
        return self._secrets.get(access_key)

    def secrets(self) -> Collection[str]:
        """Return all secrets."""
        return self._secrets.values()
