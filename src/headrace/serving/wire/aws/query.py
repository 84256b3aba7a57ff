"""AWS's query protocol of STS, IAM and older CloudWatch clients: a form with an `Action` in, XML out."""

import re
from typing import Any
from xml.sax.saxutils import escape

from botocore.model import OperationModel, Shape

from headrace.serving.wire.aws import json_values, scalars
from headrace.serving.wire.aws.errors import AwsError, malformed
from headrace.serving.wire.aws.http import HttpRequest, HttpResponse
from headrace.serving.wire.aws.identify import MAX_FORM_FIELDS, form_fields

_MAX_DEPTH = 64
_MAX_INDEX_DIGITS = 6
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot represent, even escaped."""

Node = dict[str, Any]
"""The fields of a form, nested by the parts of their names: `a.b=1` is `{"a": {"b": {"": "1"}}}`."""


def parse_input(operation: OperationModel, request: HttpRequest) -> dict[str, Any]:
    """Parse the parameters of a call and check their types. Raises `AwsError`."""
    try:
        fields = form_fields(request)
    except ValueError as error:
        raise malformed(f"The form has more than {MAX_FORM_FIELDS} fields.") from error
    if operation.input_shape is None:
        return {}
    return _structure(_tree(fields), operation.input_shape, "")


def render_output(operation: OperationModel, result: dict[str, Any], request_id: str) -> HttpResponse:
    """Render a result: `<ActionResponse><ActionResult>...</ActionResult><ResponseMetadata>...`."""
    shape = operation.output_shape
    inner = ""
    if shape is not None:
        wrapper = shape.serialization.get("resultWrapper", f"{operation.name}Result")
        inner = _element(wrapper, _members_xml(result, shape))
    inner += _element("ResponseMetadata", _text_element("RequestId", request_id))
    return _xml(
        200, f"{operation.name}Response", inner, namespace=operation.metadata.get("xmlNamespace"), request_id=request_id
    )


def render_error(error: AwsError, *, operation: OperationModel | None, request_id: str) -> HttpResponse:
    """Render `<ErrorResponse><Error><Type/><Code/><Message/></Error><RequestId/></ErrorResponse>`."""
    blame = "Receiver" if error.http_status >= 500 else "Sender"
    fields = {"Type": blame, "Code": error.code, "Message": error.message, **error.members}
    inner = _element("Error", "".join(_text_element(name, str(value)) for name, value in fields.items()))
    inner += _text_element("RequestId", request_id)
    namespace = operation.metadata.get("xmlNamespace") if operation else None
    return _xml(error.http_status, "ErrorResponse", inner, namespace=namespace, request_id=request_id)


def render_s3_error(error: AwsError, *, request_id: str) -> HttpResponse:
    """Render an error in S3's format: `<Error><Code/><Message/><RequestId/></Error>`."""
    fields = {"Code": error.code, "Message": error.message, **error.members, "RequestId": request_id}
    inner = "".join(_text_element(name, str(value)) for name, value in fields.items())
    response = _xml(error.http_status, "Error", inner, namespace=None, request_id=request_id)
    headers = (("content-type", "application/xml"), ("x-amz-request-id", request_id))
    return HttpResponse(response.status, headers, response.body)


def _tree(fields: dict[str, str]) -> Node:
    root: Node = {}
    for name, value in fields.items():
        parts = name.split(".", _MAX_DEPTH)
        if len(parts) > _MAX_DEPTH:
            raise malformed(f"A name of the form has more than {_MAX_DEPTH} parts.")
        node = root
        for part in parts:
            node = node.setdefault(part, {}) if part else {}
        node[""] = value
    return root


def _structure(node: Node, shape: Shape, where: str) -> dict[str, Any]:
    read = {}
    for name, member in shape.members.items():
        sent_as = member.serialization.get("name", name)
        if member.type_name == "list" and member.serialization.get("flattened"):
            sent_as = member.member.serialization.get("name", sent_as)  # the name of its items
        if sent_as in node:
            read[name] = _value(node[sent_as], member, json_values.member_path(where, name))
    return read


def _value(node: Node, shape: Shape, where: str) -> Any:
    kind = shape.type_name
    if kind == "structure":
        return _structure(node, shape, where)
    if kind == "list":
        # NOTE: `Names.member.1` is correct unless a list is flattened, but some clients send `Names.1`.
        items = node if shape.serialization.get("flattened") else node.get(_item_name(shape), node)
        return [
            _value(item, shape.member, f"{where}.{number}.member") for number, item in enumerate(_numbered(items), 1)
        ]
    if kind == "map":
        return _map(node, shape, where)
    if "" not in node:
        raise malformed(f"A structure was found where a {kind} was expected (at '{where}').")
    return scalars.from_text(node[""], shape, where)


def _map(node: Node, shape: Shape, where: str) -> dict[str, Any]:
    entries = node if shape.serialization.get("flattened") else node.get("entry", {})
    key_name = shape.key.serialization.get("name", "key")
    value_name = shape.value.serialization.get("name", "value")
    read: dict[str, Any] = {}
    for entry in _numbered(entries):
        if key_name not in entry or value_name not in entry:
            raise malformed(f"An entry of the map has no {key_name} or no {value_name} (at '{where}').")
        key = _value(entry[key_name], shape.key, where)
        read[key] = _value(entry[value_name], shape.value, f"{where}.{key}.member")
    return read


def _item_name(shape: Shape) -> str:
    name: str = shape.member.serialization.get("name", "member")
    return name


def _numbered(node: Node) -> list[Node]:
    """Return the items in the order of their numbers, without gaps."""
    numbers = [part for part in node if part.isascii() and part.isdigit() and len(part) <= _MAX_INDEX_DIGITS]
    return [node[part] for part in sorted(numbers, key=int)]


def _members_xml(value: dict[str, Any], shape: Shape) -> str:
    return "".join(
        _value_xml(member.serialization.get("name", name), value[name], member)
        for name, member in shape.members.items()
        if value.get(name) is not None
    )


def _value_xml(name: str, value: Any, shape: Shape) -> str:
    kind = shape.type_name
    if kind == "structure":
        return _element(name, _members_xml(value, shape))
    if kind == "list":
        if shape.serialization.get("flattened"):
            own = shape.member.serialization.get("name", name)
            return "".join(_value_xml(own, item, shape.member) for item in value)
        return _element(name, "".join(_value_xml(_item_name(shape), item, shape.member) for item in value))
    if kind == "map":
        key_name = shape.key.serialization.get("name", "key")
        value_name = shape.value.serialization.get("name", "value")
        return _element(
            name,
            "".join(
                _element("entry", _value_xml(key_name, key, shape.key) + _value_xml(value_name, item, shape.value))
                for key, item in value.items()
            ),
        )
    return _text_element(name, scalars.to_text(value, shape))


def _element(name: str, inner: str, *, attributes: str = "") -> str:
    return f"<{name}{attributes}>{inner}</{name}>"


def _text_element(name: str, text: str) -> str:
    return _element(name, escape(_NOT_XML.sub("\ufffd", text), {"\r": "&#13;"}))


def _xml(status: int, root: str, inner: str, *, namespace: str | None, request_id: str) -> HttpResponse:
    attributes = f' xmlns="{namespace}"' if namespace else ""
    text = '<?xml version="1.0" encoding="UTF-8"?>\n' + _element(root, inner, attributes=attributes)
    return HttpResponse(status, (("content-type", "text/xml"), ("x-amzn-requestid", request_id)), text.encode())
