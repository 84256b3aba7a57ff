"""The access keys of a platform: pairs of id and secret that sign requests; a secret also works as bearer token."""

import asyncio
import hmac
import secrets
import string
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headrace.core.errors import SettingsError, Unauthorized, Unavailable
from headrace.core.telemetry import get_logger
from headrace.platform.cluster.worker_files import write_atomically
from headrace.platform.host.folders import GENERATED_KEY_ID, DataFolder, LocalKey, read_local_key
from headrace.platform.state.records import (
    MAX_WRITE_TRIES,
    AlreadyExists,
    Conflict,
    Json,
    Kind,
    NoStatus,
    Record,
    RecordPart,
)
from headrace.platform.state.store import Store
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.wire.key_limits import NO_LIMITS, KeyLimits

MAX_AGE_S = 1.0
"""Seconds until a removed key is refused: `headrace keys` is another process, whose writes send no signal."""
PATIENCE_S = 3.0
"""Longest wait of a request for the database before it counts as out of reach; a busy machine may need a second."""
_PREFIX = "HRAK"
_GENERATED_NOTE = "generated at the first start, for programs of the platform's user"
_ID_ALPHABET = string.ascii_uppercase + string.digits


class AccessKeySpec(RecordPart, frozen=True, kw_only=True):
    """The secret half of an access key; its id is the record's name."""

    secret: str
    """Stored in clear text: verifying a signature takes the secret itself."""
    note: str = ""
    limits: KeyLimits = NO_LIMITS


def _without_limits(spec: Json, status: Json) -> tuple[Json, Json]:
    """Migrate from version 1, whose keys have no limits: an older platform must not lift those of a newer one."""
    return spec, status


ACCESS_KEY: Final[Kind[AccessKeySpec, NoStatus]] = Kind(
    "access-key", AccessKeySpec, NoStatus, migrations=(_without_limits,)
)


@dataclass(frozen=True, slots=True)
class AccessKey:
    key_id: str
    """AWS_ACCESS_KEY_ID"""
    secret: str = field(repr=False)
    """AWS_SECRET_ACCESS_KEY"""
    created_s: float
    note: str = ""
    limits: KeyLimits = NO_LIMITS


class AccessKeys:
    def __init__(self, store: Store, folder: DataFolder | None = None) -> None:
        """Open the keys of a store; the key for this user's programs in `folder` follows the removal of keys."""
        self._store = store
        self._folder = folder

    def create(self, *, note: str = "", limits: KeyLimits = NO_LIMITS) -> AccessKey:
        return self._create(_PREFIX + "".join(secrets.choice(_ID_ALPHABET) for _ in range(16)), note, limits)

    def generate(self) -> None:
        """Create the key of a platform that has none, unless another process does so at the same moment."""
        with suppress(AlreadyExists):
            self._create(GENERATED_KEY_ID, _GENERATED_NOTE)

    def _create(self, key_id: str, note: str, limits: KeyLimits = NO_LIMITS) -> AccessKey:
        secret = secrets.token_urlsafe(30)
        spec = AccessKeySpec(secret=secret, note=note, limits=limits)
        return _key_of(self._store.create(ACCESS_KEY, key_id, spec=spec))

    def list(self) -> list[AccessKey]:
        """Return all keys, oldest first."""
        return [_key_of(record) for record in self._store.list(ACCESS_KEY) if isinstance(record, Record)]

    def limit(self, key_id: str, limits: KeyLimits) -> AccessKey | None:
        """Replace the limits of a key; return None if no key has the id."""
        for _ in range(MAX_WRITE_TRIES):
            record = self._store.get(ACCESS_KEY, key_id)
            if not isinstance(record, Record):
                return None
            with suppress(Conflict):
                return _key_of(self._store.update(record, spec=msgspec.structs.replace(record.spec, limits=limits)))
        raise Unavailable(f"Other processes keep writing the key {key_id}. Try again.")

    def remove(self, key_id: str, *, keep_last: bool = False) -> bool:
        """
        Remove a key; return False if no key has the id.

        With `keep_last`, the only key raises `LastRecord`; the other one may have been removed at this moment.
        """
        record = self._store.get(ACCESS_KEY, key_id)
        if record is None:
            return False
        self._store.remove(record, keep_last=keep_last)
        if self._folder is not None:
            update_local_key(self, self._folder)
            with suppress(OSError):
                (self._folder.key_usage / key_id).unlink()
        return True


def _key_of(record: Record[AccessKeySpec, NoStatus]) -> AccessKey:
    spec = record.spec
    return AccessKey(record.name, spec.secret, record.created_s, spec.note, spec.limits)


def update_local_key(keys: AccessKeys, folder: DataFolder) -> LocalKey | None:
    """
    Write the key for programs of this user into the folder: the one that is there if it is still valid, else another.

    Returns it; None if there is no key at all. A full disk prevents neither a start nor the removal of a key.
    """
    known = {key.key_id: LocalKey(key_id=key.key_id, secret=key.secret) for key in keys.list()}
    before = read_local_key(folder)
    unlimited = (key.key_id for key in keys.list() if key.limits.is_empty)
    preferred = (before.key_id if before is not None else "", GENERATED_KEY_ID, *unlimited, *known)
    chosen = next((known[key_id] for key_id in preferred if key_id in known), None)
    try:
        if chosen is None:
            folder.access_key.unlink(missing_ok=True)
        else:
            write_atomically(folder.access_key, msgspec.json.encode(chosen))  # readable by its owner only
    except OSError as error:
        get_logger().warning("access_key.not_written", reason=error.strerror, path=str(folder.access_key))
    return chosen


def prepare_keys(settings: PlatformSettings, store: Store, folder: DataFolder) -> None:
    """
    Generate an access key if there is none and the platform is for this machine; write it for programs of this user.

    Raises `SettingsError` if keys are required and there are none; it names the command that creates one.
    """
    keys = AccessKeys(store)
    if settings.open:
        get_logger().warning("platform.open", reason="Every program on this machine, also of other users, has access.")
        return
    if not store.list(ACCESS_KEY):
        if not settings.is_local:
            place = f" --data-dir {settings.data_dir}" if settings.data_dir is not None else ""
            place += " --database URL" if settings.database is not None else ""
            why = f"host is {settings.host}, which others on the network can reach"
            raise SettingsError(
                f"{'require_keys is set' if settings.require_keys else why}, and there are no access keys. "
                f"Make one: `headrace keys create{place}`.",
                name="host",
            )
        keys.generate()
    update_local_key(keys, folder)


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
        self._limits: dict[str, KeyLimits] = {}
        """The limits of those keys that have any."""
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
        """Return the secret of a key, or None; raise `Unavailable` if the database, out of reach, may have it."""
        secret = self._secrets.get(access_key)
        if secret is None:
            self._check_reach()
        return secret

    def limits_of(self, access_key: str) -> KeyLimits | None:
        """Return the limits of a key; None: it has none."""
        return self._limits.get(access_key)

    async def limits_for(self, access_key: str) -> KeyLimits | None:
        """
        Return the limits of a key for what runs in its name without a request; empty: there are no keys.

        Raises `Unauthorized` if it was deleted, `Unavailable` as `secret_of` does.
        """
        await self.refresh()
        if access_key and self.secret_of(access_key) is None:
            raise Unauthorized("The access key in whose name this runs was deleted. Use another one.")
        return self.limits_of(access_key)

    def key_of(self, secret: str) -> str | None:
        """
        Return the id of the key with a secret, or None; raise `Unavailable` as `secret_of` does.

        Every key is compared, even after a match, so that the time taken does not reveal which one matches.
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
            secrets_by_id = {key.key_id: key.secret for key in found}
            before, after = self._secrets.keys(), secrets_by_id.keys()
            # Also those of `headrace keys` and other members, which call no operation here.
            if self._read_s is not None and before != after:
                get_logger().info("access_keys.changed", added=sorted(after - before), removed=sorted(before - after))
            self._secrets = secrets_by_id
            self._limits = {key.key_id: key.limits for key in found if not key.limits.is_empty}
            self._read_s = self._clock()
            self._is_out_of_reach = False
        finally:
            self._reading = None

    def _note_failure(self, reason: str) -> None:
        if not self._is_out_of_reach:
            get_logger().warning("access_keys.out_of_reach", reason=reason)
        self._is_out_of_reach = True
