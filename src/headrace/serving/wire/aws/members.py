"""
Treatment of the members of requests: applied, refused by name, or accepted without effect and named.

`member_table` puts every member of every supported operation into one of them, by the structure that has it; a test
compares it with botocore's models. What a request asks for is therefore never ignored silently. Pure.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import dedent
from types import MappingProxyType
from typing import Any, Final, Literal

from botocore.model import OperationModel, Shape, StructureShape

from headrace.serving.wire.aws.errors import AwsError, constraint_error

BY_HANDLER: Final = ""
"""The handler of the operation refuses the member, in AWS's words."""
NOTHING: Mapping[str, str] = MappingProxyType({})
Treatment = Literal["applied", "kept", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The members of one structure. Those of a member that is not applied are treated as it is."""

    applied: frozenset[str]
    kept: Mapping[str, str] = field(default_factory=dict)
    """Members that are accepted, stored and described, and have no effect; each with a sentence that says why."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Members that are refused, each with what to do instead, or `BY_HANDLER`."""

    def treatment(self, member: str) -> Treatment | None:
        """Return how a member is treated; None if it is not in the table."""
        groups: dict[Treatment, Collection[str]] = {"applied": self.applied, "kept": self.kept, "refused": self.refused}
        found = [treatment for treatment, members in groups.items() if member in members]
        assert len(found) < 2, f"{member} is {' and '.join(found)}"
        return found[0] if found else None


Table = Mapping[str, Members]
"""Members by the name of their structure in the model of a service."""


def of(applied: str = "", *, kept: Mapping[str, str] = NOTHING, refused: Mapping[str, str] = NOTHING) -> Members:
    """Return the members of a structure, the applied ones as one text."""
    return Members(applied=frozenset(applied.split()), kept=kept, refused=refused)


def table(applied: str, *, kept: Mapping[str, str] = NOTHING, refused: Mapping[str, str] = NOTHING) -> Table:
    """
    Return the members of a service.

    Args:
        applied: a line for each structure: `Structure: Member Member`; more members follow on lines that are indented.
        kept: why members have no effect, by `Structure: Member Member`.
        refused: what to do instead of members that are refused, by the same.
    """
    lines = re.split(r"\n(?=\w)", dedent(applied).strip())
    by_structure = {"kept": _by_structure(kept), "refused": _by_structure(refused)}
    return {
        name: of(members, **{how: rows.get(name, {}) for how, rows in by_structure.items()})
        for name, _, members in (line.partition(":") for line in lines)
    }


def _by_structure(rows: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for members, why in rows.items():
        structure, _, names = members.partition(": ")
        found.setdefault(structure, {}).update(dict.fromkeys(names.split(), why))
    return found


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
    """Return the sentence about a member without effect."""
    return f"{path} is kept. {why}."


def paths(shape: Shape | None, table: Table, where: str = "") -> Iterator[tuple[str, Treatment | None]]:
    """Yield each member of a structure by its path, down to those that are not applied, with its treatment."""
    if isinstance(shape, StructureShape):
        for name, member in shape.members.items():
            how = table.get(shape.name)
            treatment = None if how is None else how.treatment(name)
            path = f"{where}.{name}" if where else name
            yield path, treatment
            if treatment == "applied":
                yield from paths(member, table, path)
    elif shape is not None and shape.type_name in ("list", "map"):
        yield from paths(shape.member if shape.type_name == "list" else shape.value, table, f"{where}[]")


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
            elif name in shape.members:
                yield from _with_treatment(item, shape.members[name], table, path)
    elif shape is not None and shape.type_name in ("list", "map"):
        member, items = (shape.member, value) if shape.type_name == "list" else (shape.value, value.values())
        for number, item in enumerate(items if member.type_name in ("structure", "list", "map") else ()):
            yield from _with_treatment(item, member, table, f"{where}[{number}]")
