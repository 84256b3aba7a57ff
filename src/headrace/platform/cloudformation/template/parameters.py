"""Parameters of a template: which a call gives, their defaults, constraints and values."""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.platform.cloudformation.template.reading import template_error
from headrace.platform.cloudformation.template.template import Template
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.scope import AwsScope, partition_of

SSM_TEXT: Final = "AWS::SSM::Parameter::Value<String>"
"""The type of a parameter whose value is the name of an SSM parameter."""
_LISTS: Final = ("CommaDelimitedList", "List<Number>", "List<String>")
_TYPES: Final = ("String", "Number", SSM_TEXT, *_LISTS)
MAX_CHARACTERS: Final = 4096
"""Of a value. Source: CloudFormation user guide, "Understand quotas"."""
_PATTERN_TIMEOUT_S: Final = 1.0
_MATCH: Final = "import re, sys; sys.exit(re.fullmatch(sys.argv[1], sys.argv[2]) is None)"

Texts = dict[str, str]
"""Values by parameter, as a call gives them; of an SSM parameter its name."""


def check_declarations(template: Template) -> None:
    for name, declared in template.parameters.items():
        if declared["Type"] not in _TYPES:
            raise template_error(
                f"the type {str(declared['Type'])[:100]} of parameter {name} is not supported by Headrace; expected "
                f"one of {', '.join(_TYPES)}."
            )


def given_texts(template: Template, given: Sequence[Json], previous: Mapping[str, str]) -> Texts:
    """Return the value of every parameter. Raises `AwsError`: one has none, is not declared, or breaks a constraint."""
    by_name = {parameter["ParameterKey"]: parameter for parameter in given}
    if unknown := [name for name in by_name if name not in template.parameters]:
        raise _invalid(f"Parameters: [{', '.join(unknown)}] do not exist in the template")
    texts: Texts = {}
    for name, declared in template.parameters.items():
        parameter = by_name.get(name, {})
        if parameter.get("UsePreviousValue"):
            if name not in previous:
                raise _invalid(f"Invalid value for parameter {name}: it has no previous value.")
            texts[name] = previous[name]
        elif "ParameterValue" in parameter:
            texts[name] = parameter["ParameterValue"]
        elif "Default" in declared:
            texts[name] = _default(declared["Default"])
    if missing := [name for name in template.parameters if name not in texts]:
        raise _invalid(f"Parameters: [{', '.join(missing)}] must have values")
    for name, text in texts.items():
        _check(name, text, template.parameters[name])
    return texts


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def resolve_names(template: Template, texts: Texts, read_ssm: Callable[[str], str]) -> Texts:
    """Return the values of SSM parameters."""
    named = [name for name, declared in template.parameters.items() if declared["Type"] == SSM_TEXT]
    return {name: read_ssm(texts[name]) for name in named}


def parameter_values(template: Template, texts: Texts, resolved: Texts) -> dict[str, Any]:
    """Return what `Ref` returns for each parameter: a text or a list of texts."""
    values: dict[str, Any] = {}
    for name, declared in template.parameters.items():
        text = resolved.get(name, texts[name])
        values[name] = [item.strip() for item in text.split(",")] if declared["Type"] in _LISTS else text
    return values


def pseudo_parameters(scope: AwsScope, *, stack_name: str, stack_id: str, notification_arns: Sequence[str]) -> Json:
    is_china = scope.region.startswith("cn-")
    return {
        "AWS::AccountId": scope.account,
        "AWS::NotificationARNs": list(notification_arns),
        "AWS::Partition": partition_of(scope.region),
        "AWS::Region": scope.region,
        "AWS::StackId": stack_id,
        "AWS::StackName": stack_name,
        "AWS::URLSuffix": "amazonaws.com.cn" if is_china else "amazonaws.com",
    }


def _check(name: str, text: str, declared: Json) -> None:
    if len(text) > MAX_CHARACTERS:
        raise _invalid(f"Parameter '{name}' has more than {MAX_CHARACTERS} characters.")
    explained = f"Parameter {name} failed to satisfy constraint: {declared.get('ConstraintDescription')}"
    for broken in _broken(name, text, declared):
        raise _invalid(explained if "ConstraintDescription" in declared else broken)


def _broken(name: str, text: str, declared: Json) -> list[str]:
    """Return the constraints that a value breaks."""
    items = [item.strip() for item in text.split(",")] if declared["Type"] in _LISTS else [text]
    broken = []
    if "Number" in declared["Type"] and not all(map(_is_number, items)):
        return [f"Parameter '{name}' must be a number."]
    allowed = declared.get("AllowedValues")
    if isinstance(allowed, list) and not {*items} <= {_default(value) for value in allowed}:
        broken.append(f"Parameter '{name}' must be one of AllowedValues")
    for key, words, sign in (
        ("MinLength", "contain at least {} characters", 1),
        ("MaxLength", "contain at most {} characters", -1),
        ("MinValue", "be a number not less than {}", 1),
        ("MaxValue", "be a number not greater than {}", -1),
    ):
        if key in declared and _is_number(str(declared[key])):
            bound = float(declared[key])
            sizes = (
                [float(len(text))] if key.endswith("Length") else [float(item) for item in items if _is_number(item)]
            )
            if any((size - bound) * sign < 0 for size in sizes):
                broken.append(f"Parameter '{name}' must {words.format(declared[key])}")
    if "AllowedPattern" in declared and not all(_matches(str(declared["AllowedPattern"]), item) for item in items):
        broken.append(f"Parameter '{name}' must match pattern {declared['AllowedPattern']}")
    return broken


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip().lower() not in ("nan", "inf", "-inf", "+inf", "infinity", "-infinity", "+infinity")


def _matches(pattern: str, text: str) -> bool:
    """
    Return whether a text matches a pattern of the template.

    A pattern with several repetitions may take exponential time, in which no other thread runs: a process with a time
    limit matches it.
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        raise template_error(f"AllowedPattern {pattern[:100]} is no regular expression.") from None
    if sum(pattern.count(sign) for sign in "*+{") < 2:
        return compiled.fullmatch(text) is not None
    if "\0" in pattern + text:
        return False
    try:
        command = [sys.executable, "-I", "-S", "-c", _MATCH, pattern, text]
        return subprocess.run(command, timeout=_PATTERN_TIMEOUT_S, check=False, capture_output=True).returncode == 0  # noqa: S603 -- its arguments are no program
    except subprocess.TimeoutExpired:
        raise template_error(f"AllowedPattern {pattern[:100]} takes too long to match. Simplify it.") from None


def _invalid(message: str) -> AwsError:
    return AwsError("ValidationError", message)
