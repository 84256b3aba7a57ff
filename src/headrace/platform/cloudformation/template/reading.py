"""
Templates as text: JSON, or YAML with the short forms of functions.

YAML is read event by event, in Python: a document of 1 MB neither holds the GIL nor grows. Aliases, merges, and the
tags for binary values and timestamps are refused. Source: CloudFormation user guide, "Template formats".
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from headrace.core.errors import HeadraceError
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.json_size import check_json_size

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 100_000
"""A template of 1 MB has about 50,000; an event of YAML costs 20 microseconds."""
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_DECIMAL: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,17}(?:[eE][-+]?[0-9]{1,2})?")
_WORDS: Final = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "~", ""), None),
}
"""Source: YAML 1.1, "Boolean" and "Null"; in lower case."""
_PLAIN_NAMES: Final = ("Ref", "Condition")
"""Short forms whose full names do not begin with `Fn::`."""


def template_error(message: str) -> AwsError:
    return AwsError("ValidationError", f"Template format error: {message}")


def read_template(text: str) -> Json:
    """Return the body of a template. Raises `AwsError`."""
    is_json = text.lstrip()[:1] == "{"
    body = _read_json(text) if is_json else _read_yaml(text)
    if not isinstance(body, dict):
        raise template_error("unsupported structure.")
    return body


def _read_json(text: str) -> Any:
    try:
        check_json_size(text.encode(errors="replace"), what="The template")
        body = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise template_error(f"JSON not well-formed. (line {error.lineno}, column {error.colno})") from None
    except HeadraceError as error:
        raise template_error(error.message) from None
    except (ValueError, RecursionError):
        raise template_error("JSON not well-formed.") from None
    _check_depth(body)
    return body


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _check_depth(body: Any) -> None:
    level = [body]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        ]
        if not level:
            return
    raise template_error(f"it is nested deeper than {MAX_DEPTH} levels.")


def _read_yaml(text: str) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Composer(yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        raise template_error(f"YAML not well-formed.{where}") from None
    except (yaml.YAMLError, ValueError):
        raise template_error("YAML not well-formed.") from None


class _Composer:
    """Builds values of the events of one document."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._num_values = 0

    def document(self) -> Any:
        value: Any = None
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                if self._num_values:
                    raise template_error("it has several documents; expected one.")
                value = self._value(event, 0)
        return value

    def _value(self, event: Any, depth: int) -> Any:
        self._num_values += 1
        where = f"(line {event.start_mark.line + 1}, column {event.start_mark.column + 1})"
        if self._num_values > MAX_VALUES or depth > MAX_DEPTH:
            raise template_error(f"it has more than {MAX_VALUES} values or {MAX_DEPTH} levels. {where}")
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise template_error(f"YAML aliases are not allowed in CloudFormation templates {where}")
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = [self._value(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
        else:
            value = self._mapping(depth, where)
        return _function(event.tag, value, where) if event.tag is not None and event.tag != "!" else value

    def _mapping(self, depth: int, where: str) -> Json:
        mapping: Json = {}
        for event in self._until(yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.value == "<<":
                raise template_error(f"a key of a mapping is no text. {where}")
            if event.value in mapping:
                raise template_error(f"the key {event.value[:100]} is given twice. {where}")
            mapping[event.value] = self._value(next(self._events), depth + 1)
        return mapping

    def _until(self, end: type) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event


def _scalar(event: Any) -> Any:
    """Return the value of a scalar: dates and numbers that begin with 0, such as those of accounts, stay texts."""
    text: str = event.value
    if event.style or event.tag is not None:
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _function(tag: str, value: Any, where: str) -> Any:
    """Return the full form of a short form: `!Sub x` is `{"Fn::Sub": x}`."""
    if tag == "tag:yaml.org,2002:str":
        return value
    if not tag.startswith("!"):
        raise template_error(f"the tag {tag[:100]} is not supported. {where}")
    name = tag[1:]
    if name == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {name if name in _PLAIN_NAMES else f"Fn::{name}": value}
