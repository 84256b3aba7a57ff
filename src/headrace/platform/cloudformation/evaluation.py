"""A stack's template with its parameters: which resources it has, in which order, and what their properties are."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from headrace.platform.cloudformation.properties import check_names, expand
from headrace.platform.cloudformation.records import StackOperation
from headrace.platform.cloudformation.stack_names import StackName
from headrace.platform.cloudformation.template.functions import UNKNOWN, Evaluator, references
from headrace.platform.cloudformation.template.parameters import parameter_values, pseudo_parameters
from headrace.platform.cloudformation.template.reading import template_error
from headrace.platform.cloudformation.template.template import Template
from headrace.platform.cloudformation.types import Operations, type_rows
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError

_IAM_TYPES = ("AWS::IAM::ManagedPolicy", "AWS::IAM::Policy", "AWS::IAM::Role")


@dataclass(slots=True)
class Recorded:
    """Values of resources that are not known, but recorded."""

    names: set[str] = field(default_factory=set)
    exports: set[str] = field(default_factory=set)

    def ref(self, name: str) -> str:
        self.names.add(name)
        return UNKNOWN

    def attribute(self, name: str, _attribute: str) -> str:
        self.names.add(name)
        return UNKNOWN

    def export(self, name: str) -> str:
        self.exports.add(name)
        return UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownValues:
    """Values of the resources that exist, and of exports."""

    attributes: Callable[[str], Mapping[str, str] | None]
    """Returns the attributes of a resource, or None if they are not known yet."""
    exports: Callable[[str], str]

    def ref(self, name: str) -> str:
        return self.attribute(name, "Ref")

    def attribute(self, name: str, attribute: str) -> str:
        known = self.attributes(name)
        return UNKNOWN if known is None else known.get(attribute, "")

    def export(self, name: str) -> str:
        return self.exports(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A template with the parameters of one operation."""

    template: Template
    operation: StackOperation
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, template: Template, operation: StackOperation, stack: StackName) -> "Evaluation":
        values = parameter_values(template, operation.parameters, operation.resolved)
        arns = operation.notification_arns
        pseudo = pseudo_parameters(stack.aws_scope, stack_name=stack.name, stack_id=stack.arn, notification_arns=arns)
        return cls(template=template, operation=operation, parameters={**values, **pseudo})

    def evaluator(self, values: KnownValues | Recorded) -> Evaluator:
        return Evaluator(template=self.template, parameters=self.parameters, values=values)

    def properties(self, name: str, evaluator: Evaluator) -> Json:
        """Return the properties of a resource, with the tags of the stack."""
        resource = self.template.resources[name]
        row = type_rows()[resource.type]
        properties = expand(row, evaluator.value(resource.properties))
        if "Tags" in row.parts and self.operation.tags:
            own = properties.get("Tags") or []
            names = {tag.get("Key") for tag in own if isinstance(tag, dict)}
            tags = [{"Key": key, "Value": value} for key, value in self.operation.tags.items() if key not in names]
            properties["Tags"] = [*own, *tags]
        return properties

    def order(self) -> dict[str, list[str]]:
        """Return the resources that exist, each after those that it depends on. Raises `AwsError`: a circle."""
        evaluator = self.evaluator(Recorded())
        present = [name for name in self.template.resources if evaluator.has(name)]
        graph = {name: self._needs(name) & {*present} - {name} for name in present}
        try:
            return {name: sorted(graph[name]) for name in TopologicalSorter(graph).static_order()}
        except CycleError as error:
            names = ", ".join(dict.fromkeys(error.args[1]))
            raise AwsError("ValidationError", f"Circular dependency between resources: [{names}]") from None

    def _needs(self, name: str) -> set[str]:
        recorded = Recorded()
        self.evaluator(recorded).value(self.template.resources[name].properties)
        return recorded.names | {*self.template.resources[name].depends_on}

    def outputs(self, evaluator: Evaluator) -> dict[str, Json]:
        outputs: dict[str, Json] = {}
        for name, output in self.template.outputs.items():
            if "Condition" in output and not evaluator.condition(output["Condition"]):
                continue
            shown: Json = {"OutputKey": name, "OutputValue": evaluator.text(output["Value"], "Outputs")}
            if "Description" in output:
                shown["Description"] = str(output["Description"])
            if isinstance(export := output.get("Export"), dict):
                shown["ExportName"] = evaluator.text(export.get("Name"), "Export")
            outputs[name] = shown
        return outputs

    def imports(self) -> set[str]:
        recorded = Recorded()
        evaluator = self.evaluator(recorded)
        for name in self.order():
            evaluator.value(self.template.resources[name].properties)
        self.outputs(evaluator)
        return recorded.exports

    def check(self, operations: Operations) -> None:
        """Check all that can be before anything is created. Raises `AwsError`."""
        self._check_rules()
        self._check_references()
        evaluator = self.evaluator(Recorded())
        for name in self.order():
            resource = self.template.resources[name]
            row = type_rows()[resource.type]
            properties = self.properties(name, evaluator)
            try:
                check_names(row, properties)
                for part in row.parts:
                    if part in properties and not row.has_part(part, operations) and not row.parts[part].created:
                        raise template_error(f"#/{part}: the property is not supported by Headrace.")
            except AwsError as error:
                message = f"Properties validation failed for resource {name} with message: {error.message}"
                raise AwsError("ValidationError", message) from None
        self.outputs(evaluator)

    def _check_rules(self) -> None:
        evaluator = self.evaluator(Recorded())
        for name, rule in self.template.rules.items():
            if "RuleCondition" in rule and not evaluator.truth(rule["RuleCondition"]):
                continue
            for assertion in rule["Assertions"]:
                if not evaluator.truth(assertion["Assert"]):
                    why = assertion.get("AssertDescription", name)
                    raise AwsError("ValidationError", f"Template error: Rule {name} failed: {why}")

    def _check_references(self) -> None:
        """Check that what the template names exists, and the attributes of resources."""
        present, evaluator = self.template.resources, self.evaluator(Recorded())
        for section, named in self._named():
            if named[0] in self.parameters and named[1] is None:
                continue
            if named == ("AWS::NoValue", None):
                continue
            if named[0] not in present:
                message = f"Unresolved resource dependencies [{named[0]}] in the {section} block of the template"
                raise template_error(message)
            attributes = type_rows()[present[named[0]].type].attributes
            if named[1] is not None and named[1] not in attributes:
                raise AwsError(
                    "ValidationError",
                    f"Template error: resource {named[0]} does not support attribute type {named[1]} in Fn::GetAtt",
                )
        for name in self.order():
            for needed in sorted(self._needs(name) - {*present[name].depends_on}):
                if not evaluator.has(needed):
                    raise template_error(
                        f"Unresolved resource dependencies [{needed}] in the Resources block of the template"
                    )

    def _named(self) -> Iterator[tuple[str, tuple[str, str | None]]]:
        for resource in self.template.resources.values():
            for named in references(resource.properties):
                yield "Resources", named
            for name in resource.depends_on:
                yield "Resources", (name, None)
        for output in self.template.outputs.values():
            for named in references(output):
                yield "Outputs", named


def check_types(template: Template, operations: Operations) -> None:
    """Refuse types that the platform does not serve, before anything is created. Raises `AwsError`."""
    rows = type_rows()
    types = sorted({resource.type for resource in template.resources.values()})
    unknown = [name for name in types if name not in rows or not rows[name].is_served(operations)]
    if unknown:
        raise template_error(
            f"Unrecognized resource types: [{', '.join(unknown)}]. Headrace has {', '.join(served_types(operations))}."
        )


def served_types(operations: Operations) -> list[str]:
    return [name for name, row in type_rows().items() if row.is_served(operations)]


def needed_capabilities(template: Template) -> tuple[list[str], str]:
    """Return the capabilities that a caller must acknowledge, and why."""
    iam = [resource for resource in template.resources.values() if resource.type in _IAM_TYPES]
    if not iam:
        return [], ""
    is_named = any(type_rows()[resource.type].name in resource.properties for resource in iam)
    types = ", ".join(sorted({resource.type for resource in iam}))
    return [
        f"CAPABILITY_{'NAMED_IAM' if is_named else 'IAM'}"
    ], f"The following resource(s) require capabilities: [{types}]"
