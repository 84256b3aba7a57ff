"""The lock by which only one platform acts on an SQLite store."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.platform.state.database_lock import locked_database

LOCK_AND_WAIT = """
import sys
from headrace.platform.state.database_lock import locked_database
with locked_database(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_platform_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    place = tmp_path / "state.db"
    with (
        locked_database(place),
        pytest.raises(SettingsError, match="Another platform uses the store"),
        locked_database(f"sqlite:///{place}"),
    ):
        pass
    with locked_database(place):
        pass


def test_a_killed_process_loses_its_lock(tmp_path: Path) -> None:
    place = tmp_path / "state.db"
    with subprocess.Popen(
        [sys.executable, "-c", LOCK_AND_WAIT, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        process.kill()
    with locked_database(place):
        pass


def test_databases_that_platforms_share_or_cannot_share_have_no_lock(new_database: Callable[[], str]) -> None:
    for place in ("sqlite://", new_database()):
        with locked_database(place), locked_database(place):
            pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be created"), locked_database(tmp_path / "none" / "state.db"):
        pass
