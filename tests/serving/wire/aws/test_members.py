"""Every member that a client can send is applied, refused by name, or accepted with a word that it has no effect."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from botocore.model import OperationModel, Shape

import headrace
from headrace.platform.host.operations import OPERATIONS
from headrace.serving.wire.aws import services
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.members import BY_HANDLER, MEMBERS, Members, check, notices, paths

INVOCATIONS = ("InvokeEndpoint", "InvokeEndpointAsync", "InvokeEndpointWithResponseStream")
HANDLED = [*sorted(OPERATIONS), *(("sagemaker-runtime", name) for name in INVOCATIONS)]


@pytest.mark.parametrize(("service", "name"), HANDLED)
def test_every_member_is_applied_refused_or_named(service: str, name: str) -> None:
    """A member that a new version of botocore adds is classified before it can be ignored silently."""
    found = paths(services.operation(service, name).input_shape, MEMBERS[service])
    assert [path for path, treatment in found if treatment is None] == []


def test_the_table_has_no_member_twice_and_none_that_no_model_has() -> None:
    for service, table in MEMBERS.items():
        for name, members in table.items():
            shape = services.model(service).shape_for(name)
            given = [*members.applied, *members.kept, *members.refused, *members.stored]
            assert sorted(given) == sorted(set(given)), name
            assert set(given) <= set(shape.members), name


@cache
def words() -> frozenset[str]:
    root = Path(headrace.__file__).parent
    texts = (file.read_text() for file in root.rglob("*.py"))
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


@pytest.mark.parametrize("service", MEMBERS)
def test_the_code_knows_every_applied_member_by_its_name(service: str) -> None:
    applied = {member for members in MEMBERS[service].values() for member in members.applied}
    unknown = {member for member in applied if member not in words() and _snake(member) not in words()}
    assert unknown == set()


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def sample(shape: Shape, depth: int = 0) -> Any:
    """Return a value that asks for something."""
    if shape.type_name == "structure":
        return {
            name: sample(member, depth + 1) for name, member in list(shape.members.items())[: 9 if depth < 4 else 1]
        }
    if shape.type_name == "list":
        return [sample(shape.member, depth + 1)]
    if shape.type_name == "map":
        return {"Key": sample(shape.value, depth + 1)}
    return {"boolean": True, "integer": 1, "long": 1, "float": 1.0, "double": 1.0}.get(shape.type_name, "value")


def unapplied(
    shape: Shape, service: str, wrap: Any = lambda value: value, around: frozenset[str] = frozenset()
) -> Iterator[tuple[str, str, Members, dict[str, Any]]]:
    """Yield structure, name, treatment and the parameters of a call for each member that is not applied."""
    if shape.type_name == "list":
        yield from unapplied(shape.member, service, lambda value: wrap([value]), around)
    elif shape.type_name == "structure" and shape.name in MEMBERS[service].keys() - around:
        how = MEMBERS[service][shape.name]
        for name, member in shape.members.items():
            if name in how.applied:
                yield from unapplied(
                    member, service, lambda value, name=name: wrap({name: value}), around | {shape.name}
                )
            elif name not in how.stored:
                yield shape.name, name, how, wrap({name: sample(member)})


@pytest.mark.parametrize(("service", "name"), sorted(OPERATIONS))
def test_a_member_that_is_not_applied_is_refused_by_name_or_named_as_without_effect(service: str, name: str) -> None:
    operation: OperationModel = services.operation(service, name)
    if operation.input_shape is None:
        return
    for structure, member, how, params in unapplied(operation.input_shape, service):
        if member in how.kept:
            found = check(operation, params, MEMBERS[service])
            assert [text for text in found if f"{member} is kept. {how.kept[member]}." in text], (structure, member)
        elif how.refused[member] != BY_HANDLER:
            with pytest.raises(AwsError, match=f"{member} is not supported by Headrace: ") as caught:
                check(operation, params, MEMBERS[service])
            assert caught.value.http_status == 400


@pytest.mark.parametrize(
    "value", [None, False, "", [], {}, {"EnableCapture": False, "DestinationS3Uri": "s3://b/p"}, {"Enable": False}]
)
def test_a_value_that_asks_for_nothing_is_not_named(value: object) -> None:
    shape = services.operation("sagemaker", "CreateEndpointConfig").input_shape
    assert shape is not None
    table = {shape.name: Members(applied=frozenset(), kept={"DataCaptureConfig": "It is not done"})}
    assert notices({"DataCaptureConfig": value}, shape, table) == ()
    assert notices({"DataCaptureConfig": {"EnableCapture": True}}, shape, table) == (
        "DataCaptureConfig is kept. It is not done.",
    )
