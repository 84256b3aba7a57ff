"""The lock on the file of a store. It imports SQLAlchemy only for a URL: a supervisor does not need it otherwise."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import SettingsError


@contextmanager
def locked_database(where: str | Path) -> Iterator[None]:
    """
    Lock the database of a store, if it is a file; the kernel releases the lock when this process ends for any reason.

    Two reconcilers on the same records would each treat the other's workers as orphans: a second platform refuses to
    start. Reading, and writing specs (such as access keys), needs no lock. Platforms share a PostgreSQL database by
    `state.coordination` instead.

    Raises `SettingsError`: another platform holds it, or the lock cannot be created.
    """
    database = _file_of(where)
    if database is None:
        yield
        return
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


def _file_of(where: str | Path) -> Path | None:
    if isinstance(where, Path):
        return where
    from headrace.platform.state.database import is_in_memory, is_sqlite, url_of

    url = url_of(where)
    return None if not is_sqlite(url) or is_in_memory(url) else Path(str(url.database))
