"""
The lock on an SQLite database: one platform has it, and a second one on the same file refuses to start.

Two reconcilers on the same records would each treat the other's workers as orphans. Reading, and writing specs (such as
access keys), needs no lock. Platforms share a PostgreSQL database by `state.coordination` instead.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import SettingsError
from headrace.state.database import is_in_memory, is_sqlite, url_of


@contextmanager
def locked_database(where: str | Path) -> Iterator[None]:
    """
    Lock the database of a store, if it is a file; the kernel releases the lock when this process ends for any reason.

    Args:
        where: a file or a URL, as for `open_store`.

    Raises:
        SettingsError: another platform holds it, or the lock cannot be created.
    """
    url = url_of(where)
    if not is_sqlite(url) or is_in_memory(url):
        yield
        return
    database = Path(str(url.database))
    # NOTE: not the database file itself: closing a descriptor of it would drop SQLite's own locks.
    path = database.with_name(f"{database.name}.lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(f"The store's lock {path} cannot be created: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SettingsError(
            f"Another platform uses the store {database}. A file serves one platform: stop the other one, start this "
            "one with another database, or share a PostgreSQL database."
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)
