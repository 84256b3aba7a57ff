"""
The access key in a platform's data folder: programs of the same user find it there, and need no configuration.

The platform writes it when it starts. Other users cannot read it, as they cannot read the folder.
"""

from typing import Final
from urllib.parse import quote

import msgspec

from headrace.platform.folders import DataFolder

GENERATED_KEY_ID: Final = "HRAKGENERATEDATSTART"
"""The id of a generated key is fixed, so that only one of two processes that start at once can create it."""


class LocalKey(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of key id and secret."""

    key_id: str
    secret: str

    @property
    def is_generated(self) -> bool:
        """True if the platform created it; its secret is no operator's."""
        return self.key_id == GENERATED_KEY_ID

    def __repr__(self) -> str:
        return f"LocalKey(key_id={self.key_id!r}, secret='***')"


def read_local_key(folder: DataFolder) -> LocalKey | None:
    """Return the key in a data folder, or None if there is none that this user can read."""
    try:
        return msgspec.json.decode(folder.access_key.read_bytes(), type=LocalKey)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def local_key_for(url: str, folder: DataFolder) -> LocalKey | None:
    """
    Return the key for a URL of the platform that runs on a data folder; None for any other URL.

    After the platform was killed, its port may belong to a program of another user, which must not get the secret.
    """
    running = folder.running_platform()
    if running is None or not f"{url}/".startswith(f"{running.url}/"):
        return None
    return read_local_key(folder)


def console_url(url: str, key: LocalKey | None) -> str:
    """
    Return the address of the console.

    For a generated key it has the secret in its fragment, which browsers neither send nor log: the page signs in with
    it. The secrets of other keys are shown only when they are created.
    """
    fragment = f"#key={quote(key.secret, safe='')}" if key is not None and key.is_generated else ""
    return f"{url}/console{fragment}"
