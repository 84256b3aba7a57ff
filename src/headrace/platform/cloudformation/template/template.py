"""The sections of a template, checked for their form: which types, functions and attributes exist is checked later."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.platform.cloudformation.template.reading import read_template, template_error
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError

SERVERLESS: Final = "AWS::Serverless-2016-10-31"
"""The transform of SAM, which changes nothing in a template without resources of its own types."""
_SECTIONS: Final = (
    *("AWSTemplateFormatVersion", "Description", "Metadata", "Parameters", "Rules", "Mappings", "Conditions"),
    *("Transform", "Resources", "Outputs"),
)
_MAX_IN_SECTION: Final = {"Parameters": 200, "Mappings": 200, "Resources": 500, "Outputs": 200}
"""Source: CloudFormation user guide, "Understand quotas"."""
_RESOURCE_KEYS: Final = (
    *("Type", "Properties", "DependsOn", "Condition", "DeletionPolicy", "UpdateReplacePolicy", "Metadata"),
)
_POLICIES: Final = ("Delete", "Retain", "RetainExceptOnCreate")
_NAME: Final = re.compile("[a-zA-Z0-9]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource of a template, with functions in its properties."""

    type: str
    properties: Json
    depends_on: tuple[str, ...] = ()
    condition: str | None = None
    deletion_policy: str = "Delete"
    replace_policy: str = "Delete"
    """What happens to the resource that an update has replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    description: str | None
    metadata: Json
    parameters: Mapping[str, Json]
    rules: Mapping[str, Json]
    mappings: Mapping[str, Json]
    conditions: Mapping[str, Any]
    transforms: tuple[str, ...]
    resources: Mapping[str, Resource]
    outputs: Mapping[str, Json]


def parse_template(text: str) -> Template:
    """Return a template. Raises `AwsError`, which names what is wrong, or what Headrace does not support."""
    body = read_template(text)
    if unknown := [name for name in body if name not in _SECTIONS]:
        raise template_error(f"Invalid template property or properties [{', '.join(unknown)}]")
    description = body.get("Description")
    if description is not None and not isinstance(description, str):
        raise template_error("Description is no text.")
    sections = {name: _section(body, name) for name in _SECTIONS if name[:2] != "AW"}
    if not sections["Resources"]:
        raise template_error("At least one Resources member must be defined.")
    return Template(
        description=description,
        metadata=body.get("Metadata") or {},
        parameters={name: _declaration("Parameters", name, value) for name, value in sections["Parameters"].items()},
        rules={name: _declaration("Rules", name, value) for name, value in sections["Rules"].items()},
        mappings={name: _declaration("Mappings", name, value) for name, value in sections["Mappings"].items()},
        conditions=sections["Conditions"],
        transforms=_transforms(body),
        resources={name: _resource(name, value) for name, value in sections["Resources"].items()},
        outputs={name: _declaration("Outputs", name, value) for name, value in sections["Outputs"].items()},
    )


def _section(body: Json, name: str) -> Json:
    section = body.get(name)
    if section is None or name in ("Description", "Transform"):
        return {}
    if not isinstance(section, dict):
        raise template_error(f"{name} is no mapping.")
    most = _MAX_IN_SECTION.get(name)
    if most is not None and len(section) > most:
        message = f"Number of {name.lower()}, {len(section)}, is greater than maximum allowed, {most}"
        raise template_error(message)
    if name in _MAX_IN_SECTION:
        for key in section:
            if not _NAME.fullmatch(key):
                raise template_error(f"{name[:-1]} name {key[:255]} is non alphanumeric.")
    return section


def _transforms(body: Json) -> tuple[str, ...]:
    transform = body.get("Transform") or []
    named = [transform] if isinstance(transform, str) else transform
    for name in named if isinstance(named, list) else [named]:
        if name != SERVERLESS:
            raise AwsError("ValidationError", f"The transform {str(name)[:100]} is not supported by Headrace.")
    return tuple(named)


def _declaration(section: str, name: str, value: Any) -> Json:
    if not isinstance(value, dict):
        raise template_error(f"Every {section} member must be an object: {name} is none.")
    required = {"Parameters": "Type", "Outputs": "Value", "Rules": "Assertions"}.get(section)
    if required is not None and required not in value:
        raise template_error(f"Every {section} object must contain a {required} member: {name} has none.")
    return value


def _resource(name: str, value: Any) -> Resource:
    where = f"[/Resources/{name}]"
    if not isinstance(value, dict):
        raise template_error(f"{where} Every Resources member must be an object.")
    if not isinstance(value.get("Type"), str):
        raise template_error(f"{where} Every Resources object must contain a Type member.")
    if unknown := [key for key in value if key not in _RESOURCE_KEYS]:
        why = " by Headrace" if unknown[0] in ("CreationPolicy", "UpdatePolicy") else ""
        raise template_error(f"{where} The resource attribute {unknown[0][:100]} is not supported{why}.")
    properties, condition = value.get("Properties") or {}, value.get("Condition")
    depends_on = value.get("DependsOn") or []
    names = [depends_on] if isinstance(depends_on, str) else depends_on
    is_formed = (
        isinstance(properties, dict) and isinstance(names, list) and all(isinstance(other, str) for other in names)
    )
    if not is_formed or not isinstance(condition, str | None):
        raise template_error(f"{where} Properties is no mapping, DependsOn no list of names, or Condition no name.")
    return Resource(
        type=value["Type"],
        properties=properties,
        depends_on=tuple(names),
        condition=condition,
        deletion_policy=_policy(value, "DeletionPolicy", where),
        replace_policy=_policy(value, "UpdateReplacePolicy", where),
    )


def _policy(value: Json, key: str, where: str) -> str:
    policy = value.get(key, "Delete")
    if policy not in _POLICIES:
        raise template_error(f"{where} {key} is {str(policy)[:100]}; expected {', '.join(_POLICIES)}.")
    return str(policy)
