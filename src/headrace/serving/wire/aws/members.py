"""
Treatment of the members of requests: applied, stored, refused by name, or accepted without effect and named.

`members.txt` puts every member of every supported operation into one of them, by the structure that has it; a test
compares it with botocore's models. What a request asks for is therefore never ignored silently. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from botocore.model import OperationModel, Shape, StructureShape

from headrace.serving.wire.aws.errors import AwsError, constraint_error

BY_HANDLER: Final = ""
"""The handler of the operation refuses the member, in AWS's words."""
Treatment = Literal["applied", "kept", "refused", "stored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The members of one structure. Those of a member that is not applied are treated as it is."""

    applied: frozenset[str]
    kept: Mapping[str, str] = field(default_factory=dict)
    """Members that are accepted, stored and described, and have no effect; each with a sentence that says why."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Members that are refused, each with what to do instead, or `BY_HANDLER`."""

    stored: Mapping[str, str] = field(default_factory=dict)
    """Members of a record for people and tools: returned with all that is in them, which is what AWS does with them."""

    def treatment(self, member: str) -> Treatment | None:
        """Return how a member is treated; None if it is not in the table."""
        if member in self.applied:
            return "applied"
        if member in self.stored:
            return "stored"
        return "kept" if member in self.kept else "refused" if member in self.refused else None


Table = Mapping[str, Members]
"""Members by the name of their structure in the model of a service."""


def read_tables(text: str) -> Mapping[str, Table]:
    """Return the tables of a text by service; `members.txt` describes its format."""
    tables: dict[str, dict[str, Members]] = {}
    table: dict[str, Members] = {}
    structure = ""
    for line in text.replace(f"\n{8 * ' '}", " ").splitlines():
        if line.startswith("["):
            table = tables[line.strip("[]")] = {}
        elif line.startswith(" "):
            members, _, why = line.partition(":")
            how, *names = members.split()
            getattr(table[structure], how).update(dict.fromkeys(names, why.strip()))
        elif line and not line.startswith("#"):
            structure, _, applied = line.partition(":")
            table[structure] = Members(applied=frozenset(applied.split()), kept={}, refused={}, stored={})
    return tables


MEMBERS: Final = read_tables(Path(__file__).with_name("members.txt").read_text(encoding="utf-8"))
"""By boto3's name of the service."""


def check(operation: OperationModel, params: Mapping[str, Any], table: Table) -> tuple[str, ...]:
    """Return sentences about members of a call that have no effect. Raises `AwsError`, which names a refused member."""
    notices: dict[tuple[int, str], str] = {}  # one for each member, of a list of which many may have it
    for path, member, how in _with_treatment(params, operation.input_shape, table):
        if how.treatment(member) == "kept":
            notices.setdefault((id(how), member), notice_of(path, how.kept[member]))
        elif advice := how.refused[member]:
            service = operation.service_model.service_name
            message = f"{path} is not supported by Headrace: {advice}."
            raise (
                AwsError("InvalidParameterValue", message)
                if service == "cloudwatch"
                else constraint_error(service, message)
            )
    return tuple(notices.values())


def notices(value: Mapping[str, Any], shape: Shape, table: Table) -> tuple[str, ...]:
    """Return sentences about the members of a stored structure that have no effect."""
    return tuple(
        notice_of(path, how.kept[member])
        for path, member, how in _with_treatment(value, shape, table)
        if member in how.kept
    )


def notice_of(path: str, why: str) -> str:
    return f"{path} is kept. {why}."


def paths(
    shape: Shape | None, table: Table, where: str = "", around: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Treatment | None]]:
    """
    Yield each member of a structure by its path, down to those that are not applied, with its treatment.

    A structure within itself, such as a search expression, is listed once: `around` has those of the path.
    """
    if isinstance(shape, StructureShape) and shape.name not in around:
        for name, member in shape.members.items():
            how = table.get(shape.name)
            treatment = None if how is None else how.treatment(name)
            path = f"{where}.{name}" if where else name
            yield path, treatment
            if treatment == "applied":
                yield from paths(member, table, path, around | {shape.name})
    elif shape is not None and shape.type_name in ("list", "map"):
        yield from paths(shape.member if shape.type_name == "list" else shape.value, table, f"{where}[]", around)


def _with_treatment(
    value: Any, shape: Shape | None, table: Table, where: str = ""
) -> Iterator[tuple[str, str, Members]]:
    """Yield path and name of each member that asks for something and is not applied, with its structure's members."""
    if isinstance(shape, StructureShape):
        how = table.get(shape.name)
        for name, item in value.items() if how is not None else ():
            path = f"{where}.{name}" if where else name
            if how is not None and (name in how.kept or name in how.refused):
                # An empty or false value asks for nothing, nor do switches that are all off.
                switches = (
                    [on for key, on in item.items() if key.startswith("Enable")] if isinstance(item, dict) else []
                )
                if item not in (None, False, "", [], {}) and (not switches or any(switches)):
                    yield path, name, how
            elif name in shape.members and (how is None or name not in how.stored):
                yield from _with_treatment(item, shape.members[name], table, path)
    elif shape is not None and shape.type_name in ("list", "map"):
        member, items = (shape.member, value) if shape.type_name == "list" else (shape.value, value.values())
        for number, item in enumerate(items if member.type_name in ("structure", "list", "map") else ()):
            yield from _with_treatment(item, member, table, f"{where}[{number}]")
