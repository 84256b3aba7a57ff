"""Edits of records in the database, past the store, as another program would make them."""

import json
from collections.abc import Callable

import sqlalchemy as sa

from headrace.platform.state.records import AnyKind, Json
from headrace.platform.state.store import Store

Edit = Callable[[Json], Json]


def edit_record(
    store: Store, kind: AnyKind, name: str, *, spec: Edit | None = None, status: Edit | None = None
) -> None:
    """Change a record's JSON in the database, so that the store reads it as a new revision."""
    query = sa.text("SELECT uid, spec, status FROM headrace_records WHERE kind = :kind AND name = :name")
    with store._engine.begin() as connection:
        row = connection.execute(query, {"kind": kind.name, "name": name}).one()
        changed = {
            "spec": row.spec if spec is None else json.dumps(spec(json.loads(row.spec))),
            "status": row.status if status is None else json.dumps(status(json.loads(row.status))),
        }
        number = connection.execute(sa.text("UPDATE headrace_store SET revision = revision + 1 RETURNING revision"))
        update = sa.text(
            "UPDATE headrace_records SET spec = :spec, status = :status, revision = :revision WHERE uid = :uid"
        )
        connection.execute(update, {**changed, "revision": number.scalar_one(), "uid": row.uid})
    store.listeners.call()


def insert_record(store: Store, kind: AnyKind, name: str, spec: Json) -> None:
    """Add a record of the current schema version with any spec."""
    values = {
        "uid": f"{kind}-{name}",
        "kind": kind.name,
        "name": name,
        "spec": json.dumps(spec),
        "version": kind.version,
    }
    insert = sa.text(
        "INSERT INTO headrace_records VALUES (:uid, :kind, :name, 0, :spec, '{}', '{}', 0, 0, NULL, :version)"
    )
    with store._engine.begin() as connection:
        connection.execute(insert, values)
    store.listeners.call()
