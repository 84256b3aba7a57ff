"""The access keys of a platform: pairs of id and secret that sign requests; a secret also works as bearer token."""

import asyncio
import secrets
import string
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from headrace.core.errors import Unavailable
from headrace.state.records import Kind, NoStatus, Record, RecordPart
from headrace.state.store import Store

MAX_AGE_S = 1.0
"""Seconds until a removed key is refused: `headrace keys` is another process, whose writes send no signal."""
_PREFIX = "HRAK"
_ID_ALPHABET = string.ascii_uppercase + string.digits


class AccessKeySpec(RecordPart, frozen=True, kw_only=True):
    """The secret half of an access key; its id is the record's name."""

    secret: str
    """Stored in clear text: verifying a signature takes the secret itself."""
    note: str = ""


ACCESS_KEY: Final[Kind[AccessKeySpec, NoStatus]] = Kind("access-key", AccessKeySpec, NoStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """A pair of key id and secret."""

    key_id: str
    """AWS_ACCESS_KEY_ID"""
    secret: str = field(repr=False)
    """AWS_SECRET_ACCESS_KEY"""
    created_s: float
    note: str = ""


class AccessKeys:
    """The access keys in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, *, note: str = "") -> AccessKey:
        """Create a key."""
        key_id = _PREFIX + "".join(secrets.choice(_ID_ALPHABET) for _ in range(16))
        secret = secrets.token_urlsafe(30)
        record = self._store.create(ACCESS_KEY, key_id, spec=AccessKeySpec(secret=secret, note=note))
        return AccessKey(key_id=key_id, secret=secret, created_s=record.created_s, note=note)

    def list(self) -> list[AccessKey]:
        """Return all keys, oldest first."""
        return [
            AccessKey(
                key_id=record.name,
                secret=record.spec.secret,
                created_s=record.created_s,
                note=record.spec.note,
            )
            for record in self._store.list(ACCESS_KEY)
            if isinstance(record, Record)
        ]

    def remove(self, key_id: str) -> bool:
        """Remove a key; return False if no key has the id."""
        record = self._store.get(ACCESS_KEY, key_id)
        if record is None:
            return False
        self._store.remove(record)
        return True


class KeyRing:
    """The secrets by key id, cached in memory for authentication and read again after `MAX_AGE_S`."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = AccessKeys(store)
        self._clock = clock
        self._secrets: dict[str, str] = {}
        self._read_s: float | None = None
        self._reading = asyncio.Lock()

    async def refresh(self) -> None:
        """
        Read the keys again if they are older than `MAX_AGE_S`; keep them while the database is out of reach.

        Raises:
            Unavailable: the keys have never been read.
        """
        async with self._reading:
            if self._read_s is not None and self._clock() - self._read_s <= MAX_AGE_S:
                return
            try:
                found = await asyncio.to_thread(self._keys.list)
            except Unavailable:
                if self._read_s is None:
                    raise
            else:
                self._secrets = {key.key_id: key.secret for key in found}
            self._read_s = self._clock()

    def secret_of(self, access_key: str) -> str | None:
        """Return the secret of a key, or None."""
        return self._secrets.get(access_key)

    def items(self) -> Collection[tuple[str, str]]:
        """Return the ids of all keys with their secrets."""
        return self._secrets.items()
