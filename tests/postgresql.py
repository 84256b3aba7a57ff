"""A PostgreSQL server of our own, for the tests of a folder whose `conftest` imports these fixtures."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

POSTGRESQL_FOLDERS = "/usr/lib/postgresql/*/bin"


def find_postgresql() -> Path | None:
    """The folder of PostgreSQL's programs: on the path, or where Debian puts them."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    root = Path("/")
    return next((path.parent for path in sorted(root.glob(f"{POSTGRESQL_FOLDERS[1:]}/initdb"), reverse=True)), None)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """A server of our own on a socket in a folder of its own; the URL of its maintenance database."""
    programs = find_postgresql()
    if programs is None:
        reason = "PostgreSQL's server is not installed (Debian: apt-get install postgresql)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="headrace-pg-"))
    as_user = _unprivileged_user(folder) if os.geteuid() == 0 else {}
    data = folder / "data"
    run = {"check": True, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, **as_user}
    try:
        initdb = [programs / "initdb", "-D", data, "-U", "headrace", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"]
        subprocess.run(initdb, **run)
        options = f"-c listen_addresses='' -k {folder} -c fsync=off -c max_connections=50"
        pg_ctl = [programs / "pg_ctl", "-D", data, "-l", folder / "log"]
        subprocess.run([*pg_ctl, "-w", "-o", options, "start"], **run)
        try:
            yield f"postgresql://headrace@/postgres?host={folder}"
        finally:
            subprocess.run([*pg_ctl, "-m", "immediate", "stop"], **run)
    finally:
        shutil.rmtree(folder)


def _unprivileged_user(folder: Path) -> dict[str, int]:
    """Return a user to run PostgreSQL as, which refuses to run as root."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "daemon")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid}


@pytest.fixture
def new_database(postgresql_server: str) -> Callable[[], str]:
    """Makes an empty database; returns its URL."""
    import psycopg

    def make() -> str:
        name = f"test_{uuid.uuid4().hex}"
        with contextlib.closing(psycopg.connect(postgresql_server, autocommit=True)) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return postgresql_server.replace("/postgres?", f"/{name}?")

    return make
