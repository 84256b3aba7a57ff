"""The access keys of a platform: pairs with which requests are signed; a secret is a bearer key, too."""

import secrets
import string
from dataclasses import dataclass, field

from headrace.control.model.kinds import ACCESS_KEY
from headrace.state.store import Store

_PREFIX = "HRAK"
_ID_ALPHABET = string.ascii_uppercase + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """One key."""

    key_id: str
    """AWS_ACCESS_KEY_ID"""
    secret: str = field(repr=False)
    """AWS_SECRET_ACCESS_KEY; kept as it is, because a signature cannot be verified with less."""
    created_s: float
    note: str = ""


class AccessKeys:
    """The keys in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, *, note: str = "") -> AccessKey:
        """Make a key."""
        key_id = _PREFIX + "".join(secrets.choice(_ID_ALPHABET) for _ in range(16))
        secret = secrets.token_urlsafe(30)
        record = self._store.create(ACCESS_KEY, key_id, spec={"secret": secret, "note": note})
        return AccessKey(key_id=key_id, secret=secret, created_s=record.created_s, note=note)

    def list(self) -> list[AccessKey]:
        """All keys, the oldest first."""
        return [
            AccessKey(
                key_id=record.name,
                secret=record.spec["secret"],
                created_s=record.created_s,
                note=record.spec.get("note", ""),
            )
            for record in self._store.list(ACCESS_KEY)
        ]

    def remove(self, key_id: str) -> bool:
        """Remove a key; False if there is none of that id."""
        record = self._store.get(ACCESS_KEY, key_id)
        if record is None:
            return False
        self._store.remove(record)
        return True
