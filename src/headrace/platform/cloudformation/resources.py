"""Create, update, read and delete one resource, by the operations that its type names. Blocks."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

from headrace.platform.cloudformation.calls import Call
from headrace.platform.cloudformation.properties import Unfilled, fill, input_shape, member_of, params_of, part_calls
from headrace.platform.cloudformation.records import Instance
from headrace.platform.cloudformation.stack_names import StackName
from headrace.platform.cloudformation.types import TypeRow, type_rows
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.scope import partition_of

Progress = Literal["changing", "ready"]
_ABSENT: Final = re.compile(r"NotFound|NoSuch|Could not find|cannot find|(?:does|did) not exist|^404", re.IGNORECASE)
"""In the code or the message of an error for a resource that does not exist."""
_TOKENS: Final = ("Marker", "NextToken", "nextToken")
"""Members that name the next page of a list."""
_MAX_NAME: Final = 63
_SUFFIX_CHARACTERS: Final = 12


class ResourceFailed(Exception):
    """A resource cannot be created, changed or deleted; the message is the reason of its event."""


def is_absent(error: AwsError) -> bool:
    return error.http_status == 404 or any(_ABSENT.search(text) for text in (error.code, error.message))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources of one stack."""

    call: Call
    stack: StackName

    def plan(self, type_name: str, properties: Json, *, logical_id: str, number: int, policy: str) -> Instance:
        """Return an instance that is to be created, with its generated name."""
        row = type_rows()[type_name]
        identity: dict[str, str] = {}
        if row.name:
            name = properties.get(row.name) or self._generated(row, logical_id, number)
            member = row.renamed.get(row.name, row.name)
            shape = input_shape(row, row.create)
            identity[(member_of(shape, member) if shape is not None else member) or member] = str(name)
        scope = self._scope(properties, identity)
        identity |= {name: str(value) for name, value in fill(row.identity, scope).items()}
        instance = Instance(type=type_name, properties=properties, identity=identity, policy=policy)
        return self._with_attributes(instance, {})

    def read(self, instance: Instance) -> Json | None:
        """Return the members of a resource; None if it does not exist."""
        row = type_rows()[instance.type]
        if not row.read:
            return {}
        try:
            params = self._params(row, row.read, instance)
        except Unfilled:  # its id is known when it has been created
            return None
        while True:
            try:
                answer = self._call(row, row.read, params)
            except AwsError as error:
                if is_absent(error):
                    return None
                raise
            found = answer.get(row.found, answer)
            if not isinstance(found, list):
                return dict(found)
            for item in found:
                if all(item[name] == value for name, value in instance.identity.items() if name in item):
                    return dict(item)
            token = next((name for name in _TOKENS if answer.get(name)), None)
            if token is None:
                return None
            params = {**params, token: answer[token]}

    def create(self, instance: Instance) -> Instance:
        row = type_rows()[instance.type]
        answer = self._create(row, instance) if row.create else {}
        identified = self._with_attributes(instance, answer.get(row.made, answer))
        self._put_parts(row, identified, before=None)
        return identified

    def _create(self, row: TypeRow, instance: Instance) -> Json:
        scope = self._instance_scope(instance)
        return self._call(row, row.create, params_of(row, row.create, scope, instance.properties, is_create=True))

    def update(self, before: Sequence[Instance], after: Instance) -> None:
        """Call the operations whose parameters differ; `before` is what the resource may be now."""
        row = type_rows()[after.type]
        for operation in row.update:
            params = self._params(row, operation, after)
            if any(params != self._params(row, operation, possible) for possible in before):
                if row.most_versions:
                    self._keep_versions(row, after, row.most_versions - 1)
                self._call(row, operation, params)
        self._put_parts(row, after, before=before)

    def _keep_versions(self, row: TypeRow, instance: Instance, num_kept: int) -> None:
        """Delete the oldest versions of a managed policy but for so many, the default version among them."""
        policy: Json = {name: instance.identity[name] for name in row.identity}
        versions = self._call(row, "ListPolicyVersions", policy)["Versions"]
        others = [version["VersionId"] for version in versions if not version["IsDefaultVersion"]]
        oldest = sorted(others, key=lambda version: int(version.removeprefix("v")))
        for version in oldest[: max(0, len(versions) - num_kept)]:
            self._call(row, "DeletePolicyVersion", {**policy, "VersionId": version})

    def stop(self, instance: Instance) -> None:
        """End what a resource does, so that it can be deleted; one that has ended refuses that."""
        row = type_rows()[instance.type]
        if row.stop:
            with suppress(AwsError):
                self._call(row, row.stop, self._params(row, row.stop, instance))

    def delete(self, instance: Instance) -> None:
        row = type_rows()[instance.type]
        for name, part in row.parts.items():
            if part.removed:
                for _, params in part_calls(row, name, self._instance_scope(instance), instance.properties).values():
                    self._delete(row, part.delete, params)
        if row.most_versions and self.read(instance) is not None:
            self._keep_versions(row, instance, 1)
        if row.delete:
            with suppress(Unfilled):  # it was never created
                self._delete(row, row.delete, self._params(row, row.delete, instance))

    def progress(self, instance: Instance, members: Json, *, is_update: bool) -> Progress:
        """Return whether a resource has settled. Raises `ResourceFailed`."""
        row = type_rows()[instance.type]
        if row.status is not None:
            state = members.get(row.status.member)
            if state in row.status.bad:
                raise ResourceFailed(str(members.get(row.status.reason) or f"The resource is {state}."))
            if state not in row.status.good:
                return "changing"
        for name in row.confirmed if is_update else ():
            if members.get(name) != instance.properties.get(name):
                why = members.get(row.status.reason) if row.status is not None else None
                raise ResourceFailed(str(why or f"The resource has kept the {name} {members.get(name)}."))
        return "ready"

    def with_attributes(self, instance: Instance, members: Json) -> Instance:
        """Return an instance with what `Ref` and `Fn::GetAtt` return."""
        return self._with_attributes(instance, members)

    def _with_attributes(self, instance: Instance, members: Json) -> Instance:
        row = type_rows()[instance.type]
        scope = {**self._instance_scope(instance), **members}
        attributes = dict(instance.attributes)
        for name, template in {"Ref": row.ref, **row.attributes}.items():
            try:
                attributes[name] = str(fill(template, scope))
            except Unfilled:
                continue
        return Instance(
            type=instance.type,
            properties=instance.properties,
            identity=instance.identity,
            attributes=attributes,
            policy=instance.policy,
        )

    def _put_parts(self, row: TypeRow, after: Instance, *, before: Sequence[Instance] | None) -> None:
        """Put the items that are new or different, and delete the others; None: after the resource was created."""
        for name, part in row.parts.items():
            if before is None and part.created:
                continue
            old = [
                part_calls(row, name, self._instance_scope(possible), possible.properties) for possible in before or ()
            ] or [{}]
            new = part_calls(row, name, self._instance_scope(after), after.properties)
            for key, (_, params) in {key: calls for items in old for key, calls in items.items()}.items():
                if key not in new:
                    self._delete(row, part.delete, params)
            for key, (params, _) in new.items():
                if any(key not in items or items[key][0] != params for items in old):
                    self._call(row, part.put, params)

    def _delete(self, row: TypeRow, operation: str, params: Json) -> None:
        try:
            self._call(row, operation, params)
        except AwsError as error:
            if not is_absent(error):
                raise

    def _params(self, row: TypeRow, operation: str, instance: Instance) -> Json:
        return params_of(row, operation, self._instance_scope(instance), instance.properties)

    def _call(self, row: TypeRow, operation: str, params: Json) -> Json:
        return self.call(row.service, operation, params)

    def _instance_scope(self, instance: Instance) -> Json:
        return {**self._scope(instance.properties, instance.identity), **instance.attributes}

    def _scope(self, properties: Json, identity: Mapping[str, Any]) -> Json:
        scope = self.stack.aws_scope
        return {
            "account": scope.account,
            "partition": partition_of(scope.region),
            "region": scope.region,
            "AWS::StackName": self.stack.name,
            **properties,
            **identity,
        }

    def _generated(self, row: TypeRow, logical_id: str, number: int) -> str:
        """Return a name like those that CloudFormation generates; the same one again for the same instance."""
        digest = hashlib.sha256(f"{self.stack.uid}/{logical_id}/{number}".encode()).digest()
        suffix = base64.b32encode(digest).decode()[:_SUFFIX_CHARACTERS]
        shape = input_shape(row, row.create)
        member = shape.members.get(row.name) if shape is not None else None
        most = min(_MAX_NAME, member.metadata.get("max", _MAX_NAME) if member is not None else _MAX_NAME)
        most -= _SUFFIX_CHARACTERS + 2
        id_part = logical_id[: most // 2]
        name = f"{self.stack.name[: most - len(id_part)]}-{id_part}-{suffix}"
        return name.lower() if row.is_lower_case else name
