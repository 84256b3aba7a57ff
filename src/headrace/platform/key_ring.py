"""The access keys as the gate looks them up: in memory, read anew when somebody may have changed them."""

import asyncio
import time
from collections.abc import Callable, Collection

from headrace.control.access_keys import AccessKeys
from headrace.state.store import Store

MAX_AGE_S = 1.0
"""`headrace keys` is another process, whose writes nobody tells: after so long a removed key opens nothing."""


class KeyRing:
    """Secrets by access key."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = AccessKeys(store)
        self._clock = clock
        self._secrets: dict[str, str] = {}
        self._read_s: float | None = None
        self._reading = asyncio.Lock()

    async def refresh(self) -> None:
        """Read the keys again if they were read too long ago."""
        async with self._reading:
            if self._read_s is None or self._clock() - self._read_s > MAX_AGE_S:
                found = await asyncio.to_thread(self._keys.list)
                self._secrets = {one.key_id: one.secret for one in found}
                self._read_s = self._clock()

    def secret_of(self, access_key: str) -> str | None:
        """The secret of a key; None: there is no such key."""
        return self._secrets.get(access_key)

    def secrets(self) -> Collection[str]:
        """All secrets."""
        return self._secrets.values()
