"""The lease by which only one platform acts on a store."""

import contextlib
import subprocess
import sys

import psycopg
import pytest

from headrace.core.errors import SettingsError, Unavailable
from headrace.state.database_lease import acquire_database_lease
from headrace.state.sql import open_store

TAKE_AND_WAIT = """
import sys
from headrace.state.database_lease import acquire_database_lease
held = acquire_database_lease(sys.argv[1])
print("taken", flush=True)
sys.stdin.read()
"""
IS_LOCK = "locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"


@pytest.fixture
def made_place(lasting_place: str) -> str:
    """Location of an existing store."""
    open_store(lasting_place).close()
    return lasting_place


def end_sessions_with_locks(place: str) -> int:
    """End the sessions that hold the lock, as a restart of the database server would."""
    ending = f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE {IS_LOCK}"
    with contextlib.closing(psycopg.connect(place, autocommit=True)) as connection:
        return len(connection.execute(ending).fetchall())


def test_a_second_lease_is_refused_until_the_first_is_released(made_place) -> None:
    with contextlib.closing(open_store(made_place)):
        first = acquire_database_lease(made_place)
        with pytest.raises(SettingsError, match="Another platform uses the store"):
            acquire_database_lease(made_place, patience_s=0)
        first.check()
        first.release()
        second = acquire_database_lease(made_place)
        second.check()
        second.release()


def test_a_killed_process_loses_its_lease(made_place) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_AND_WAIT, made_place], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"taken\n"
        process.kill()
    acquire_database_lease(made_place).release()


def test_an_in_memory_database_is_never_shared() -> None:
    first, second = acquire_database_lease("sqlite://"), acquire_database_lease("sqlite://")
    first.check()
    first.release()
    second.release()


def test_two_databases_of_one_server_have_separate_leases(new_database) -> None:
    first, second = acquire_database_lease(new_database()), acquire_database_lease(new_database())
    first.release()
    second.release()


def test_a_lost_connection_is_restored_and_the_lease_acquired_again(new_database) -> None:
    place = new_database()
    held = acquire_database_lease(place)
    assert end_sessions_with_locks(place) == 1
    held.check()
    with pytest.raises(SettingsError):
        acquire_database_lease(place, patience_s=0)
    held.release()


def test_a_lease_lost_to_another_platform_is_reported(new_database) -> None:
    place = new_database()
    held = acquire_database_lease(place)
    end_sessions_with_locks(place)
    other = acquire_database_lease(place)
    with pytest.raises(SettingsError, match="stop the other one"):
        held.check()
    other.release()
    held.check()
    held.release()


def test_the_error_for_an_unreachable_server_has_no_secrets() -> None:
    with pytest.raises(Unavailable, match="cannot be locked") as caught:
        acquire_database_lease("postgresql://user:secret@127.0.0.1:1/x")
    assert "secret" not in caught.value.message
