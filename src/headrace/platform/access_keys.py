"""The access keys of a platform: pairs of id and secret that sign requests; a secret also works as bearer token."""

import asyncio
import hmac
import secrets
import string
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headrace.core.errors import Unavailable
from headrace.core.telemetry import get_logger
from headrace.state.records import Kind, NoStatus, Record, RecordPart
from headrace.state.store import Store

MAX_AGE_S = 1.0
"""Seconds until a removed key is refused: `headrace keys` is another process, whose writes send no signal."""
PATIENCE_S = 3.0
"""Longest wait of a request for the database before it counts as out of reach; a busy machine may need a second."""
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
    """
    The secrets by key id, cached in memory for authentication and read again after `MAX_AGE_S`.

    A request waits for keys that are read again, but only until a read fails or takes too long: from then on the keys
    are read in the background until the database answers, and no request waits.
    """

    def __init__(
        self, store: Store, *, clock: Callable[[], float] = time.monotonic, patience_s: float = PATIENCE_S
    ) -> None:
        self._keys = AccessKeys(store)
        self._clock = clock
        self._patience_s = patience_s
        self._secrets: dict[str, str] = {}
        self._read_s: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_out_of_reach = False
        """The database does not answer; a read is running or due."""

    async def refresh(self) -> None:
        """Read the keys again if they are older than `MAX_AGE_S`; keep them while the database is out of reach."""
        is_fresh = self._read_s is not None and self._clock() - self._read_s <= MAX_AGE_S
        if is_fresh or self._is_out_of_reach:
            return
        reading = self._begin_reading()
        await asyncio.wait({reading}, timeout=self._patience_s)
        if not reading.done():
            self._note_failure(f"It has not answered for {self._patience_s:g} s.")

    def secret_of(self, access_key: str) -> str | None:
        """
        Return the secret of a key, or None if there is no such key.

        Raises:
            Unavailable: the key is unknown, but the database is out of reach.
        """
        secret = self._secrets.get(access_key)
        if secret is None:
            self._check_reach()
        return secret

    def key_of(self, secret: str) -> str | None:
        """
        Return the id of the key with a secret, or None if there is no such key.

        Every key is compared, even after a match, so that the time taken does not reveal which one matches.

        Raises:
            Unavailable: the secret is unknown, but the database is out of reach.
        """
        sent = secret.encode()
        matches = [key for key, known in self._secrets.items() if hmac.compare_digest(sent, known.encode())]
        if not matches:
            self._check_reach()
        return matches[0] if matches else None

    def _check_reach(self) -> None:
        if self._is_out_of_reach:
            raise Unavailable(
                "The access key is not among those that the platform knows, and its database, which may have it, is "
                "out of reach. Try again later."
            )

    def _begin_reading(self) -> "asyncio.Task[None]":
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="access keys")
        return self._reading

    async def _read(self) -> None:
        try:
            found = await asyncio.to_thread(self._keys.list)
        except Exception as error:  # noqa: BLE001 -- the edge of a task: known keys stay valid whatever fails
            self._note_failure(str(error))
            asyncio.get_running_loop().call_later(MAX_AGE_S, self._begin_reading)
        else:
            self._secrets = {key.key_id: key.secret for key in found}
            self._read_s = self._clock()
            self._is_out_of_reach = False
        finally:
            self._reading = None

    def _note_failure(self, reason: str) -> None:
        if not self._is_out_of_reach:
            get_logger().warning("access_keys.out_of_reach", reason=reason)
        self._is_out_of_reach = True
