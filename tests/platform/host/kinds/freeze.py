"""
Freeze the stored form of all kinds of records, and of the tables, in `frozen.json`.

`python -m tests.platform.host.kinds.freeze` adds versions that are new. It does not change one that is there: stores
have records of it. Append a migration to the kind; changed tables need a new version in `state/schema.py`.

The coordination tables have no version: members of two versions write them at once.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from headrace.platform.host.operations import KINDS
from headrace.platform.state.coordination_tables import TABLES as COORDINATION
from headrace.platform.state.records import AnyKind
from headrace.platform.state.schema import RECORDS, SCHEMA_VERSION

FROZEN = Path(__file__).parent / "frozen.json"


def forms() -> Any:
    """Return the stored form of each kind and of the store's tables, by name and version."""
    found = {
        **{f"{kind} {kind.version}": _form_of(kind) for kind in KINDS.values()},
        f"tables {SCHEMA_VERSION}": _columns_of(RECORDS.metadata),
    }
    return json.loads(json.dumps(found))


def frozen_forms() -> Any:
    return _form(json.loads(FROZEN.read_text())) if FROZEN.exists() else {}


def _columns_of(tables: sa.MetaData) -> dict[str, list[str]]:
    return {table.name: [column_text(column) for column in table.c] for table in tables.sorted_tables}


def column_text(column: sa.Column[Any]) -> str:
    return f"{column.name} {column.type}{'' if column.nullable else ' NOT NULL'}"


def _form_of(kind: AnyKind) -> dict[str, Any]:
    return {"spec": _schema_of(kind.spec), "status": _schema_of(kind.status)}


def _schema_of(part: type) -> Any:
    return _form(msgspec.json.schema(part))


def _form(schema: Any) -> Any:
    """Return a schema without docstrings and without the order of its required members, which no record shows."""
    if isinstance(schema, list):
        return [_form(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _form(value) for name, value in schema.items() if name != "description"}
    return kept | {"required": sorted(kept["required"])} if isinstance(kept.get("required"), list) else kept


if __name__ == "__main__":
    FROZEN.write_text(
        json.dumps({"coordination": _columns_of(COORDINATION), **forms(), **frozen_forms()}, indent=1, sort_keys=True)
        + "\n"
    )
