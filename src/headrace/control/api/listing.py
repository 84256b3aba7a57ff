"""List operations: filters, order and pages. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.wire.aws.errors import validation_error
from headrace.wire.aws.paging import Paginator

PAGE_SIZE = 10
"""Where `MaxResults` is not given. Source: SageMaker API reference, ListEndpoints."""
_PAGES = Paginator(
    invalid_token=lambda: validation_error(
        "Invalid NextToken. It belongs to a list in another order, or is not one of this service: begin without it."
    )
)


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
    page, token = _PAGES.page(
        _filtered(things, params),
        params,
        listing=f"{member} by {sort_by}",
        key=lambda one: (value_of(one), one.name),
        size=params.get("MaxResults", PAGE_SIZE),
        is_descending=is_descending,
    )
    return {member: [one.summary for one in page], **token}


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
