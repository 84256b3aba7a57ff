"""
Intrinsic functions, conditions and references.

Source: CloudFormation user guide, "Intrinsic function reference". A value that is known only after a resource exists is
`UNKNOWN` in the preview of a change set, whatever function it goes through.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from headrace.platform.cloudformation.template.template import Template
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError

UNKNOWN: Final = "{{changeSet:KNOWN_AFTER_APPLY}}"
"""Source: CloudFormation user guide, "View a change set"."""
NO_VALUE: Final = object()
"""The value of `AWS::NoValue`, which removes the property that has it."""
_MAX_DIGITS: Final = 9
"""Of an index into a list; Python refuses to convert more than 4300."""
MAX_CHARACTERS: Final = 8_000_000
"""All values of a template together: it may name a long parameter many times."""
_VARIABLE: Final = re.compile(r"\$\{([^{}]*)\}")


class Values(Protocol):
    """The values of resources and of other stacks."""

    def ref(self, name: str) -> Any: ...
    def attribute(self, name: str, attribute: str) -> Any: ...
    def export(self, name: str) -> str: ...


def function_error(message: str) -> AwsError:
    return AwsError("ValidationError", f"Template error: {message}")


def references(node: Any) -> Iterator[tuple[str, str | None]]:
    """Yield the parameters and resources that a value names, in all branches, each with its attribute."""
    match node:
        case {"Ref": str(name), **others} if not others:
            yield name, None
        case {"Fn::GetAtt": target, **others} if not others:
            name, attribute = split_attribute(target)
            yield name, attribute if isinstance(attribute, str) else None
            yield from references(attribute)
        case {"Fn::Sub": argument, **others} if not others:
            text, local = _sub_arguments(argument)
            for variable in _variables(text):
                if variable not in local:
                    name, _, attribute = variable.partition(".")
                    yield name, attribute or None
            yield from references(local)
        case dict():
            for value in node.values():
                yield from references(value)
        case list():
            for value in node:
                yield from references(value)


def split_attribute(target: Any) -> tuple[str, Any]:
    match target:
        case str() if "." in target:
            name, _, attribute = target.partition(".")
            return name, attribute
        case [str(name), str() | dict() as attribute]:
            return name, attribute
    raise function_error(
        "every Fn::GetAtt object requires two non-empty parameters, the resource name and the attribute"
    )


def _variables(text: str) -> list[str]:
    found = (match.group(1).strip() for match in _VARIABLE.finditer(text))
    return [variable for variable in found if not variable.startswith("!")]


def _sub_arguments(argument: Any) -> tuple[str, Json]:
    match argument:
        case str():
            return argument, {}
        case [str(text), dict(local)]:
            return text, local
    raise function_error("One or more Fn::Sub intrinsic functions don't specify expected arguments.")


@dataclass(slots=True, kw_only=True)
class Evaluator:
    template: Template
    parameters: Mapping[str, Any]
    """Values by name, pseudo parameters among them."""
    values: Values
    _conditions: dict[str, bool | None] = field(default_factory=dict)
    """Values of conditions; None: being evaluated."""
    _num_characters: int = 0

    def value(self, node: Any) -> Any:
        """Return a value without functions. Raises `AwsError`."""
        if isinstance(node, dict):
            name = next(iter(node)) if len(node) == 1 else ""
            if name in _FUNCTIONS:
                return self._charge(_FUNCTIONS[name](self, node[name]))
            if name.startswith("Fn::"):
                raise function_error(f"the function {name[:100]} is not supported by Headrace here.")
            evaluated = {key: self.value(item) for key, item in node.items()}
            return {key: item for key, item in evaluated.items() if item is not NO_VALUE}
        if isinstance(node, list):
            return [item for item in map(self.value, node) if item is not NO_VALUE]
        return node

    def text(self, node: Any, function: str) -> str:
        value = self.value(node)
        if isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, str | int | float):
            raise function_error(f"{function} has an argument that is no text.")
        return str(value)

    def has(self, name: str) -> bool:
        """Return whether a resource exists by its condition."""
        condition = self.template.resources[name].condition
        return condition is None or self.condition(condition)

    def condition(self, name: Any) -> bool:
        if name not in self.template.conditions:
            raise AwsError("ValidationError", f"Template format error: Unresolved condition dependency {name}")
        if name not in self._conditions:
            self._conditions[name] = None
            self._conditions[name] = self.truth(self.template.conditions[name])
        known = self._conditions[name]
        if known is None:
            raise function_error(f"Circular dependency between conditions: {name}")
        return known

    def truth(self, node: Any) -> bool:
        """Return the value of a condition function."""
        match node:
            case {"Condition": str(name), **others} if not others:
                return self.condition(name)
            case {"Fn::Equals": [left, right], **others} if not others:
                return self.text(left, "Fn::Equals") == self.text(right, "Fn::Equals")
            case {"Fn::Not": [inner], **others} if not others:
                return not self.truth(inner)
            case {"Fn::And": [_, _, *_] as all_of, **others} if not others:
                return all(self.truth(inner) for inner in all_of)
            case {"Fn::Or": [_, _, *_] as any_of, **others} if not others:
                return any(self.truth(inner) for inner in any_of)
            case {"Fn::Contains": [list(texts), text], **others} if not others:
                return self.value(text) in self.value(texts)
        raise function_error(
            f"Conditions can only be boolean operations on parameters and other conditions: {node!r:.200}"
        )

    def _charge(self, value: Any) -> Any:
        """Bound the size of all values that functions have returned."""
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, dict | list):
                stack += item.values() if isinstance(item, dict) else item
            self._num_characters += len(item) if isinstance(item, str) else 1
            if self._num_characters > MAX_CHARACTERS:
                raise function_error(f"the values of the template have more than {MAX_CHARACTERS} characters.")
        return value


def _ref(scope: Evaluator, name: Any) -> Any:
    if name == "AWS::NoValue":
        return NO_VALUE
    if not isinstance(name, str):
        raise AwsError("ValidationError", "Template format error: every Ref object must have a single String value.")
    return scope.parameters[name] if name in scope.parameters else scope.values.ref(name)


def _get_att(scope: Evaluator, target: Any) -> Any:
    name, attribute = split_attribute(target)
    return scope.values.attribute(name, scope.text(attribute, "Fn::GetAtt"))


def _sub(scope: Evaluator, argument: Any) -> str:
    text, local = _sub_arguments(argument)

    def substitute(match: "re.Match[str]") -> str:
        variable = match.group(1).strip()
        if variable.startswith("!"):
            return f"${{{variable[1:]}}}"
        if variable in local:
            return scope.text(local[variable], "Fn::Sub")
        name, _, attribute = variable.partition(".")
        return scope.text({"Fn::GetAtt": [name, attribute]} if attribute else {"Ref": name}, "Fn::Sub")

    return _VARIABLE.sub(substitute, text)


def _join(scope: Evaluator, argument: Any) -> str:
    match argument:
        case [str(delimiter), list() | dict() as items]:
            joined = scope.value(items)
            if joined == UNKNOWN:
                return UNKNOWN
            if isinstance(joined, list):
                return delimiter.join(scope.text(item, "Fn::Join") for item in joined)
    raise function_error(
        "every Fn::Join object requires two parameters, (1) a string delimiter and (2) a list of strings to be joined "
        "or a function that returns a list of strings (such as Fn::GetAZs) to be joined."
    )


def _split(scope: Evaluator, argument: Any) -> list[str]:
    match argument:
        case [str(delimiter), source] if delimiter:
            return scope.text(source, "Fn::Split").split(delimiter)
    raise function_error("every Fn::Split object requires two parameters, (1) a string delimiter and (2) a string.")


def _select(scope: Evaluator, argument: Any) -> Any:
    match argument:
        case [index, list() | dict() as items]:
            values, number = scope.value(items), scope.text(index, "Fn::Select")
            if values == UNKNOWN or (isinstance(values, list) and len(values) == 1 and UNKNOWN in str(values[0])):
                return UNKNOWN
            is_index = number.isdecimal() and len(number) <= _MAX_DIGITS
            if isinstance(values, list) and is_index and int(number) < len(values):
                return values[int(number)]
            raise function_error(f"Fn::Select cannot select nonexistent value at index {number[:20]}")
    raise function_error("every Fn::Select object requires two parameters, (1) an index and (2) a list.")


def _if(scope: Evaluator, argument: Any) -> Any:
    match argument:
        case [str(name), then, otherwise]:
            return scope.value(then if scope.condition(name) else otherwise)
    raise function_error("Fn::If requires a list argument with three elements")


def _find_in_map(scope: Evaluator, argument: Any) -> Any:
    if not isinstance(argument, list) or len(argument) != 3:
        raise function_error(
            "every Fn::FindInMap object requires three parameters, the map name, map key and the attribute"
        )
    found: Any = scope.template.mappings
    for part in argument:
        key = scope.text(part, "Fn::FindInMap")
        if not isinstance(found, Mapping) or key not in found:
            raise function_error(f"Unable to get mapping for {'::'.join(str(part) for part in argument)[:300]}")
        found = found[key]
    return found


def _base64(scope: Evaluator, argument: Any) -> str:
    text = scope.text(argument, "Fn::Base64")
    return UNKNOWN if UNKNOWN in text else base64.b64encode(text.encode()).decode()


def _availability_zones(scope: Evaluator, argument: Any) -> list[str]:
    """Return the zones of a region; a platform has one machine or one cluster, and so one zone."""
    region = scope.text(argument, "Fn::GetAZs") or str(scope.parameters["AWS::Region"])
    return [f"{region}a"]


def _import_value(scope: Evaluator, argument: Any) -> str:
    return scope.values.export(scope.text(argument, "Fn::ImportValue"))


_FUNCTIONS: Final[Mapping[str, Callable[[Evaluator, Any], Any]]] = {
    "Fn::Base64": _base64,
    "Fn::FindInMap": _find_in_map,
    "Fn::GetAZs": _availability_zones,
    "Fn::GetAtt": _get_att,
    "Fn::If": _if,
    "Fn::ImportValue": _import_value,
    "Fn::Join": _join,
    "Fn::Select": _select,
    "Fn::Split": _split,
    "Fn::Sub": _sub,
    "Ref": _ref,
}
