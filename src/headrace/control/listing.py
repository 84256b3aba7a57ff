"""List operations: filters, order and pages. Pure."""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.wire.aws.errors import validation_error

PAGE_SIZE = 10
"""Where `MaxResults` is not given. Source: SageMaker API reference, ListEndpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One thing that may be listed."""

    name: str
    created_s: float
    modified_s: float
    status: str
    summary: dict[str, Any]


_SORT_VALUES: dict[str, Callable[[Listed], Any]] = {
    "Name": lambda one: one.name,
    "CreationTime": lambda one: one.created_s,
    "Status": lambda one: one.status,
}
_TIMES: dict[str, Callable[[Listed, float], bool]] = {
    "CreationTimeBefore": lambda one, limit: one.created_s < limit,
    "CreationTimeAfter": lambda one, limit: one.created_s > limit,
    "LastModifiedTimeBefore": lambda one, limit: one.modified_s < limit,
    "LastModifiedTimeAfter": lambda one, limit: one.modified_s > limit,
}


def list_page(things: Sequence[Listed], params: dict[str, Any], *, member: str) -> dict[str, Any]:
    """
    Answer a List operation.

    A token names the last thing of its page, so that pages stay right while things come and go.

    Args:
        things: all there are.
        params: of the call.
        member: what the list is called in the answer.

    Raises:
        AwsError: the token is not one of ours.
    """
    sort_by = params.get("SortBy", "CreationTime")
    is_descending = params.get("SortOrder", "Descending") == "Descending"
    value_of = _SORT_VALUES[sort_by]
    found = sorted(_filtered(things, params), key=lambda one: (value_of(one), one.name), reverse=is_descending)
    if token := params.get("NextToken"):
        after = _read_token(token, sort_by=sort_by)
        found = [one for one in found if _is_after((value_of(one), one.name), after, is_descending=is_descending)]
    number = params.get("MaxResults", PAGE_SIZE)
    page = found[:number]
    answer: dict[str, Any] = {member: [one.summary for one in page]}
    if len(found) > number:
        answer["NextToken"] = _token(sort_by, value_of(page[-1]), page[-1].name)
    return answer


def _filtered(things: Sequence[Listed], params: dict[str, Any]) -> list[Listed]:
    part = params.get("NameContains", "").lower()
    status = params.get("StatusEquals")
    times = [(is_within, params[name]) for name, is_within in _TIMES.items() if name in params]
    return [
        one
        for one in things
        if part in one.name.lower()
        and (status is None or one.status == status)
        and all(is_within(one, limit) for is_within, limit in times)
    ]


def _is_after(key: tuple[Any, str], after: tuple[Any, str], *, is_descending: bool) -> bool:
    return key < after if is_descending else key > after


def _token(sort_by: str, value: object, name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([sort_by, value, name]).encode()).decode()


def _read_token(token: str, *, sort_by: str) -> tuple[Any, str]:
    try:
        read = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, RecursionError):
        read = None
    match read:
        case ["CreationTime" as sorted_by, int() | float() as value, str(name)]:
            pass
        case ["Name" | "Status" as sorted_by, str() as value, str(name)]:
            pass
        case _:
            sorted_by, value, name = "", "", ""
    if sorted_by != sort_by:
        raise validation_error(
            "Invalid NextToken. It belongs to a list in another order, or is not one of this service: begin without it."
        )
    return value, name
