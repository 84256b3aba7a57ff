"""
Search: resources whose members fit an expression, with the members that Describe returns and their tags.

Resources of kinds that the platform does not have, such as training jobs, are found by no expression.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from headrace.platform.control.api.cards import describe_card
from headrace.platform.control.api.context import PAGE_SIZE, PAGES, CallContext
from headrace.platform.control.api.definitions import MODELS
from headrace.platform.control.api.endpoints import describe_endpoint
from headrace.platform.control.api.packages import describe_group, describe_package
from headrace.platform.control.model.cards import MODEL_CARD
from headrace.platform.control.model.definitions import MODEL
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.control.model.packages import MODEL_PACKAGE, MODEL_PACKAGE_GROUP
from headrace.platform.state.records import AnyKind, Json, Record
from headrace.serving.wire.aws import services
from headrace.serving.wire.aws.errors import validation_error
from headrace.serving.wire.aws.paging import Key
from headrace.serving.wire.aws.tags import list_tags

_KINDS: Final[Mapping[str, tuple[AnyKind, str, Callable[[CallContext, Json], Json]]]] = {
    "Endpoint": (ENDPOINT, "EndpointName", describe_endpoint),
    "Model": (MODEL, "ModelName", MODELS.describe),
    "ModelCard": (MODEL_CARD, "ModelCardName", describe_card),
    "ModelPackage": (MODEL_PACKAGE, "ModelPackageName", describe_package),
    "ModelPackageGroup": (MODEL_PACKAGE_GROUP, "ModelPackageGroupName", describe_group),
}
"""Kind, member of its name, and description of each resource."""
_CARD_MEMBERS: Final = {
    "ModelId": ("model_overview", "model_id"),
    "RiskRating": ("intended_uses", "risk_rating"),
    "ModelPackageGroupName": ("model_package_details", "model_package_group_name"),
}
"""Members of a found model card that are parts of its content. Source: SageMaker API reference, ModelCard."""
_COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "Equals": lambda found, value: bool(found == value),
    "GreaterThan": lambda found, value: bool(found > value),
    "GreaterThanOrEqualTo": lambda found, value: bool(found >= value),
    "LessThan": lambda found, value: bool(found < value),
    "LessThanOrEqualTo": lambda found, value: bool(found <= value),
}


def search(context: CallContext, params: Json) -> Json:
    resource, expression = params["Resource"], params.get("SearchExpression", {})
    is_elsewhere = params.get("CrossAccountFilterOption") == "CrossAccount"
    documents = () if is_elsewhere or resource not in _KINDS else _documents(context, resource)
    found = [document for document in documents if _fits(document, expression)]
    sort_by, name_member = params.get("SortBy", "LastModifiedTime"), _KINDS.get(resource, (None, ""))[1]
    is_number = any(isinstance(value, int | float) for item in found for value in _values(item, sort_by)[:1])

    def key(document: Json) -> Key:
        value = next(iter(_values(document, sort_by)), None)
        first = float(value or 0.0) if is_number else str("" if value is None else value)
        return (first, str(document.get(f"{resource}Arn", document.get(name_member))))

    page, token = PAGES.page(
        found,
        params,
        listing=f"{resource} by {sort_by}",
        key=key,
        size=params.get("MaxResults", PAGE_SIZE),
        is_descending=params.get("SortOrder", "Descending") == "Descending",
    )
    return {"Results": [{resource: _shown(resource, document)} for document in page], **token}


def _shown(resource: str, document: Json) -> Json:
    """Return the members that a result has; those of a model are below another member of that name."""
    shape = services.operation("sagemaker", "Search").output_shape.members["Results"].member.members[resource]
    if resource == "Model":
        return {"Model": {name: document[name] for name in document if name in shape.members["Model"].members}}
    return {name: document[name] for name in document if name in shape.members}


def _documents(context: CallContext, resource: str) -> Iterator[Json]:
    kind, name_member, describe = _KINDS[resource]
    for record in context.store.each(kind):
        if not isinstance(record, Record):
            continue
        name = context.arn(kind, record.name) if kind is MODEL_PACKAGE else record.name
        document = {"LastModifiedTime": record.modified_s, **describe(context, {name_member: name})}
        if record.tags:
            document["Tags"] = list_tags(record.tags)
        more = _card_members(document) if kind is MODEL_CARD else {"Model": document} if kind is MODEL else {}
        yield {**document, **more}


def _card_members(document: Json) -> Json:
    content = json.loads(document["Content"])
    parts = ((name, content.get(part), member) for name, (part, member) in _CARD_MEMBERS.items())
    found = {name: part.get(member) for name, part, member in parts if isinstance(part, dict)}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _fits(document: Json, expression: Json) -> bool:
    tests = [_passes(document, each) for each in expression.get("Filters", ())]
    tests += [_fits(document, each) for each in expression.get("SubExpressions", ())]
    return (any if expression.get("Operator") == "Or" else all)(tests) or not tests


def _passes(document: Json, condition: Json) -> bool:
    """Return whether a document passes one filter; of a list, one item has to."""
    found, text = _values(document, condition["Name"]), condition.get("Value")
    operator = condition.get("Operator", "Exists" if text is None else "Equals")
    if operator in ("Exists", "NotExists"):
        return bool(found) is (operator == "Exists")
    if text is None:
        raise validation_error(f"The filter on {condition['Name']} has no Value, which {operator} needs.")
    if operator == "NotEquals":
        return not any(value == _as(value, text) for value in found)
    if operator == "Contains":
        return any(text in str(value) for value in found)
    if operator == "In":
        return any(value == _as(value, part) for value in found for part in text.split(","))
    comparable = [value for value in found if not isinstance(value, dict)]  # an object has no order
    return any(_COMPARED[operator](value, _as(value, text)) for value in comparable)


def _values(document: Any, path: str) -> list[Any]:
    """Return the values at a path of names; `Tags.KEY` is the value of a tag."""
    if isinstance(document, list):
        return [value for item in document for value in _values(item, path)]
    if not path:
        return [] if document is None else [document]
    if not isinstance(document, dict):
        return []
    name, _, rest = path.partition(".")
    if name == "Tags" and rest:
        return [tag["Value"] for tag in document.get("Tags", ()) if tag["Key"] == rest]
    return _values(document[name], rest) if name in document else []


def _as(found: Any, text: str) -> Any:
    """Return the text of a filter as a value like the one that was found: a number, a time, a boolean or a text."""
    if isinstance(found, bool):
        return text.lower() == "true"
    if not isinstance(found, int | float):
        return text
    with suppress(ValueError):
        return float(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise validation_error(f"{text!r} is compared with {found}; expected a number or a time in ISO 8601.") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
