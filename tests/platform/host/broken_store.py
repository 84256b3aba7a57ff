"""A store whose database fails, as one that is out of reach."""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.platform.state.store import Store


@contextmanager
def out_of_reach(store: Store) -> Iterator[None]:
    """Let all reads and writes of records raise `Unavailable`, because their table is gone."""
    _execute(store, "ALTER TABLE headrace_records RENAME TO away")
    try:
        yield
    finally:
        _execute(store, "ALTER TABLE away RENAME TO headrace_records")


def _execute(store: Store, statement: str) -> None:
    with store._engine.begin() as connection:
        connection.exec_driver_sql(statement)
