"""The changes that an operation would make to a stack, as change sets show them. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.platform.cloudformation.evaluation import Evaluation, KnownValues
from headrace.platform.cloudformation.properties import Difference, difference
from headrace.platform.cloudformation.records import StackResource, StackStatus
from headrace.platform.cloudformation.template.template import Resource
from headrace.platform.cloudformation.types import type_rows
from headrace.platform.state.records import Json


@dataclass(slots=True, kw_only=True)
class Preview:
    """Compares a stack with the template of an operation."""

    evaluation: Evaluation
    status: StackStatus
    exports: Callable[[str], str]
    _known: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Attributes of resources that stay."""

    def changes(self) -> list[Json]:
        """Return members of AWS's `Change`: what is added and changed in the template's order, then what is removed."""
        changes = []
        order = self.evaluation.order()
        for name in order:
            resource, known = self.evaluation.template.resources[name], self.status.resources.get(name)
            properties = self.evaluation.properties(name, self._evaluator())
            if known is None or known.current is None:
                changes.append(_change("Add", name, resource.type))
            elif (modify := self._modify(name, resource, known, properties)) is not None:
                changes.append(modify)
        for name, known in self.status.resources.items():
            if name not in order and known.current is not None:
                policy = "Retain" if known.policy != "Delete" else "Delete"
                changes.append(_change("Remove", name, known.type, physical_id=known.physical_id, PolicyAction=policy))
        return changes

    def is_same(self) -> bool:
        """Return whether an update would change nothing, to be called after `changes`, which found none."""
        deployed = self.status.deployed
        resources = self.evaluation.template.resources
        return (
            deployed is not None
            and deployed.tags == self.evaluation.operation.tags
            and self.evaluation.outputs(self._evaluator()) == self.status.outputs
            and all(known.policy == resources[name].deletion_policy for name, known in self.status.resources.items())
        )

    def _evaluator(self) -> Any:
        return self.evaluation.evaluator(KnownValues(attributes=self._known.get, exports=self.exports))

    def _modify(self, name: str, resource: Resource, known: StackResource, properties: Json) -> Json | None:
        current = known.current
        assert current is not None, "a resource without an instance is added"
        is_other = current.type != resource.type
        change = difference(type_rows()[resource.type], current.properties, properties)
        if not is_other and not change.replacing:
            self._known[name] = current.attributes
        if not is_other and not change.changed:
            return None
        replacement = "True" if is_other else "Conditional" if change.is_conditional else str(bool(change.replacing))
        return _change(
            "Modify",
            name,
            resource.type,
            physical_id=known.physical_id,
            Replacement=replacement,
            Scope=sorted({_attribute(changed) for changed in change.changed}),
            Details=[_detail(changed, change) for changed in change.changed],
        )


def _attribute(name: str) -> str:
    return "Tags" if name == "Tags" else "Properties"


def _detail(name: str, change: Difference) -> Json:
    recreation = "Never" if name not in change.replacing else "Conditionally" if change.is_conditional else "Always"
    target: Json = {"Attribute": _attribute(name), "RequiresRecreation": recreation}
    if name != "Tags":
        target["Name"] = name
    return {
        "Target": target,
        "Evaluation": "Dynamic" if recreation == "Conditionally" else "Static",
        "ChangeSource": "DirectModification",
    }


def _change(action: str, name: str, type_name: str, *, physical_id: str | None = None, **members: Any) -> Json:
    change: Json = {"Action": action, "LogicalResourceId": name, "ResourceType": type_name, "Scope": [], "Details": []}
    if physical_id is not None:
        change["PhysicalResourceId"] = physical_id
    return {"Type": "Resource", "ResourceChange": {**change, **members}}
