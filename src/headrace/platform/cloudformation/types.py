"""The table of the types of resources: which operations make them, and how their properties become members."""

import functools
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

Operations = Collection[tuple[str, str]]
"""Services and operations that the platform has."""


class Status(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The member of the read operation to wait for. Its other values are those of a resource that is changing."""

    member: str
    good: tuple[str, ...]
    bad: tuple[str, ...]
    reason: str


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A property whose items have operations of their own."""

    put: str
    delete: str
    put_with: dict[str, Any] = {}
    delete_with: dict[str, Any] = {}
    key: str = ""
    """The member that identifies an item; empty for a property that is one item."""
    created: bool = False
    removed: bool = False


class TypeRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of `types.toml`, which describes the fields."""

    service: str
    ref: str
    create: str = ""
    read: str = ""
    update: tuple[str, ...] = ()
    stop: str = ""
    delete: str = ""
    most_versions: int = 0
    name: str = ""
    is_lower_case: bool = False
    upsert: bool = False
    identity: dict[str, str] = {}
    renamed: dict[str, str] = {}
    expanded: dict[str, tuple[str, ...]] = {}
    defaults: dict[str, Any] = {}
    with_: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict, name="with")
    found: str = ""
    made: str = ""
    attributes: dict[str, str] = {}
    status: Status | None = None
    confirmed: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    parts: dict[str, Part] = {}

    @property
    def operations(self) -> list[str]:
        """All operations that a resource of this type may need."""
        own = [self.create, self.read, self.stop, self.delete, *self.update]
        return [name for name in own if name]

    def is_served(self, operations: Operations) -> bool:
        return not self.service or all((self.service, name) in operations for name in self.operations)

    def has_part(self, name: str, operations: Operations) -> bool:
        part = self.parts[name]
        return all((self.service, operation) in operations for operation in (part.put, part.delete))


@functools.cache
def type_rows() -> Mapping[str, TypeRow]:
    """Return all types by name; the table is read when the first template is."""
    table = tomllib.loads(Path(__file__).with_name("types.toml").read_text(encoding="utf-8"))
    shared = table.pop("shared")
    return {name: msgspec.convert(_complete(row, shared), TypeRow) for name, row in table.items()}


def _complete(row: dict[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    noun = row.pop("noun", None)
    derived = {}
    if noun is not None:
        derived = {
            "create": f"Create{noun}",
            "read": f"Describe{noun}",
            "delete": f"Delete{noun}",
            "name": f"{noun}Name",
        }
    parts = {name: shared[part] if isinstance(part, str) else part for name, part in row.get("parts", {}).items()}
    return {**derived, **row, "parts": parts}
