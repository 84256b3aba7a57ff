"""The filters, order and pages of List operations. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.wire.aws.errors import validation_error
from headrace.wire.aws.paging import Paginator

PAGE_SIZE = 10
"""Default of `MaxResults`. Source: SageMaker API reference, ListEndpoints."""
_PAGES = Paginator(
    invalid_token=lambda: validation_error(
        "Invalid NextToken. It belongs to a list in another order, or to another service: start again without it."
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A resource as List operations filter, sort and show it."""

    name: str
    created_s: float
    modified_s: float
    status: str
    summary: dict[str, Any]


_SORT_VALUES: dict[str, Callable[[Listed], Any]] = {
    "Name": lambda resource: resource.name,
    "CreationTime": lambda resource: resource.created_s,
    "Status": lambda resource: resource.status,
}
_TIMES: dict[str, Callable[[Listed, float], bool]] = {
    "CreationTimeBefore": lambda resource, limit: resource.created_s < limit,
    "CreationTimeAfter": lambda resource, limit: resource.created_s > limit,
    "LastModifiedTimeBefore": lambda resource, limit: resource.modified_s < limit,
    "LastModifiedTimeAfter": lambda resource, limit: resource.modified_s > limit,
}


def list_page(resources: Sequence[Listed], params: dict[str, Any], *, member: str) -> dict[str, Any]:
    """
    Answer a List operation.

    Args:
        resources: all resources of the kind.
        params: the parameters of the call.
        member: the name of the list in the answer.

    Raises:
        AwsError: the token is invalid.
    """
    sort_by = params.get("SortBy", "CreationTime")
    is_descending = params.get("SortOrder", "Descending") == "Descending"
    value_of = _SORT_VALUES[sort_by]
    page, token = _PAGES.page(
        _filtered(resources, params),
        params,
        listing=f"{member} by {sort_by}",
        key=lambda resource: (value_of(resource), resource.name),
        size=params.get("MaxResults", PAGE_SIZE),
        is_descending=is_descending,
    )
    return {member: [resource.summary for resource in page], **token}


def _filtered(resources: Sequence[Listed], params: dict[str, Any]) -> list[Listed]:
    part = params.get("NameContains", "").lower()
    status = params.get("StatusEquals")
    times = [(is_within, params[name]) for name, is_within in _TIMES.items() if name in params]
    return [
        resource
        for resource in resources
        if part in resource.name.lower()
        and (status is None or resource.status == status)
        and all(is_within(resource, limit) for is_within, limit in times)
    ]
