"""The filters, order and pages of SageMaker's List operations."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from typing import Any

from headrace.state.selection import Entry, Order, Selection
from headrace.wire.aws.errors import validation_error
from headrace.wire.aws.paging import Key, Paginator

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


Read = Callable[[Selection], Iterator[Listed]]
"""Yields resources by name or time of creation, of which only as many are read as the page needs."""

_KEYS: dict[str, tuple[Callable[[Listed], Key], Key]] = {
    "Name": (lambda resource: (resource.name,), ("",)),
    "CreationTime": (lambda resource: (resource.created_s, resource.name), (0.0, "")),
    "Status": (lambda resource: (resource.status, resource.name), ("", "")),
}
"""The key of each order, and an example of it."""
_ORDERS: dict[str, Order] = {"CreationTime": "created"}
"""The orders in which the database reads, where it is not by name."""


def list_page(read: Read, params: dict[str, Any], *, member: str) -> dict[str, Any]:
    """
    Answer a List operation.

    Args:
        read: reads the resources of the kind.
        params: the parameters of the call.
        member: the name of the list in the answer.

    Raises:
        AwsError: the token is invalid.
    """
    sort_by = params.get("SortBy", "CreationTime")
    is_descending = params.get("SortOrder", "Descending") == "Descending"
    key, example = _KEYS[sort_by]
    listing = f"{member} by {sort_by}"
    size = params.get("MaxResults", PAGE_SIZE)
    last = _PAGES.last_key(params, listing=listing, like=example)
    selection = Selection(
        name_part=params.get("NameContains", ""),
        created_after_s=params.get("CreationTimeAfter"),
        created_before_s=params.get("CreationTimeBefore"),
        order=_ORDERS.get(sort_by, "name"),
        is_descending=is_descending,
        after=None if last is None or sort_by == "Status" else _entry(last),
    )
    fitting: Iterable[Listed] = (resource for resource in read(selection) if _fits(resource, params))
    if sort_by == "Status":  # which no column has
        later = (item for item in fitting if last is None or (key(item) < last if is_descending else key(item) > last))
        fitting = (nlargest if is_descending else nsmallest)(size + 1, later, key=key)
    page, token = _PAGES.cut(fitting, listing=listing, key=key, size=size)
    return {member: [resource.summary for resource in page], **token}


def _entry(last: Key) -> Entry:
    *created_s, name = last
    return Entry(name=str(name), created_s=float(created_s[0]) if created_s else 0.0)


def _fits(resource: Listed, params: dict[str, Any]) -> bool:
    """Return whether a resource passes the filters on what no column has."""
    return (
        params.get("StatusEquals", resource.status) == resource.status
        and ("LastModifiedTimeBefore" not in params or resource.modified_s < params["LastModifiedTimeBefore"])
        and ("LastModifiedTimeAfter" not in params or resource.modified_s > params["LastModifiedTimeAfter"])
    )
