"""Exports of stacks, which other stacks import."""

from collections.abc import Iterator, Mapping

from headrace.platform.cloudformation.records import STACK, StackRecord
from headrace.platform.cloudformation.stack_names import is_archived
from headrace.platform.state.records import Json, Record
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.errors import AwsError


def stacks(store: Store) -> Iterator[StackRecord]:
    """Yield the stacks that exist."""
    for record in store.each(STACK):
        if isinstance(record, Record) and not is_archived(record):
            yield record


def exports(record: StackRecord) -> dict[str, str]:
    return {
        output["ExportName"]: output["OutputValue"]
        for output in record.status.outputs.values()
        if output.get("ExportName") is not None
    }


def export_value(store: Store, name: str) -> str:
    for record in stacks(store):
        if (value := exports(record).get(name)) is not None:
            return value
    raise AwsError("ValidationError", f"No export named {name} found.")


def users_of(store: Store, name: str) -> list[str]:
    """Return the stacks that import an export."""
    return [record.name for record in stacks(store) if name in record.status.imports]


def check_exports(store: Store, stack: str, outputs: Mapping[str, Json]) -> None:
    """
    Refuse an export that another stack has, and the end or another value of one that another stack uses.

    Raises `AwsError`.
    """
    new = {output["ExportName"]: output["OutputValue"] for output in outputs.values() if "ExportName" in output}
    records = list(stacks(store))
    old = next((exports(record) for record in records if record.name == stack), {})
    for record in records:
        if record.name != stack and (taken := sorted(exports(record).keys() & new.keys())):
            raise AwsError("ValidationError", f"Export with name {taken[0]} is already exported by stack {record.name}")
        lost = [name for name in old if old[name] != new.get(name) and name in record.status.imports]
        if lost and record.name != stack:
            verb = "updated" if lost[0] in new else "deleted"
            raise AwsError("ValidationError", f"Export {lost[0]} cannot be {verb} as it is in use by {record.name}")
