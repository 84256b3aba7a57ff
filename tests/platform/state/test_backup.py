"""The commands of the guide on backups, on a real PostgreSQL."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from headrace.platform.host.access_keys import ACCESS_KEY, AccessKeySpec
from headrace.platform.state.store import open_store
from tests.pages import DOCS, block_with
from tests.platform.state.kinds import MODEL
from tests.postgresql import find_postgresql

PAGE = DOCS / "guides" / "backup.md"


def run(code: str, folder: Path, **variables: str) -> None:
    programs = find_postgresql()
    assert programs is not None
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, **variables}
    done = subprocess.run(["bash", "-euc", code], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_records_move_from_sqlite_to_postgresql_and_back(new_database: Callable[[], str], tmp_path: Path) -> None:
    database = new_database()
    with closing(open_store(tmp_path / "records.sqlite")) as store:
        made = store.create(ACCESS_KEY, "KEY", spec=AccessKeySpec(secret="s", note="ünïcödé"))
    run(block_with(PAGE, "to-postgresql"), tmp_path, HEADRACE_UP_DATA_DIR=str(tmp_path), POSTGRESQL=database)
    with closing(open_store(database)) as store:
        assert list(store.list(ACCESS_KEY)) == [made]
    back = "headrace backup back.tar.gz && headrace restore back.tar.gz --database sqlite:///back.sqlite"
    run(back, tmp_path, HEADRACE_UP_DATA_DIR=str(tmp_path), HEADRACE_UP_DATABASE=database)
    with closing(open_store(tmp_path / "back.sqlite")) as store:
        assert list(store.list(ACCESS_KEY)) == [made]


def test_records_in_postgresql_are_dumped_while_a_platform_runs_and_restored(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    old, new = (new_database().replace("postgresql://", "postgresql+psycopg://") for _ in range(2))
    with closing(open_store(old)) as store:
        made = store.create(MODEL, "kept", spec={"text": "ünïcödé"})
        run(block_with(PAGE, "pg_dump"), tmp_path, HEADRACE_UP_DATABASE=old)
        store.create(MODEL, "later", spec={})
    run(block_with(PAGE, "pg_restore"), tmp_path, HEADRACE_UP_DATABASE=new)
    with closing(open_store(new)) as store:
        assert list(store.list(MODEL)) == [made]
