"""The filters, order and pages of SageMaker's List operations."""

from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest, nsmallest

from headrace.platform.state.records import Json
from headrace.platform.state.selection import Entry, Order, Selection
from headrace.serving.wire.aws.errors import validation_error
from headrace.serving.wire.aws.paging import Key, Paginator

PAGE_SIZE = 10
"""Default of `MaxResults`. Source: SageMaker API reference, ListEndpoints."""
_PAGES = Paginator(
    invalid_token=lambda: validation_error(
        "Invalid NextToken. It belongs to a list in another order, or to another service: start again without it."
    )
)


Read = Callable[[Selection], Iterator[Json]]
"""Yields the summaries of resources by name or time of creation; only as many are read as the page needs."""

_ORDERS: dict[str, Order] = {"CreationTime": "created"}
"""The orders in which the database reads, where it is not by name."""


def list_page(read: Read, params: Json, *, word: str) -> Json:
    """
    Answer a List operation by the summaries that `read` yields.

    AWS forms members from the `word` for the kind: `EndpointName`, `EndpointStatus` and `Endpoints`.
    """
    name, status, member = f"{word}Name", f"{word}Status", f"{word}s"
    sort_by, size = params.get("SortBy", "CreationTime"), params.get("MaxResults", PAGE_SIZE)
    is_descending = params.get("SortOrder", "Descending") == "Descending"
    keys: dict[str, tuple[Callable[[Json], Key], Key]] = {
        "Name": (lambda resource: (resource[name],), ("",)),
        "CreationTime": (lambda resource: (resource["CreationTime"], resource[name]), (0.0, "")),
        "Status": (lambda resource: (resource[status], resource[name]), ("", "")),
    }
    key, example = keys[sort_by]
    listing = f"{member} by {sort_by}"
    last = _PAGES.last_key(params, listing=listing, like=example)
    after = None
    if last is not None and sort_by != "Status":
        *created_s, last_name = last
        after = Entry(name=str(last_name), created_s=float(created_s[0]) if created_s else 0.0)
    selection = Selection(
        name_part=params.get("NameContains", ""),
        created_after_s=params.get("CreationTimeAfter"),
        created_before_s=params.get("CreationTimeBefore"),
        order=_ORDERS.get(sort_by, "name"),
        is_descending=is_descending,
        after=after,
    )
    fitting: Iterable[Json] = (resource for resource in read(selection) if _fits(resource, params, status))
    if sort_by == "Status":  # which no column has
        later = (item for item in fitting if last is None or (key(item) < last if is_descending else key(item) > last))
        fitting = (nlargest if is_descending else nsmallest)(size + 1, later, key=key)
    page, token = _PAGES.cut(fitting, listing=listing, key=key, size=size)
    return {member: page, **token}


def _fits(resource: Json, params: Json, status: str) -> bool:
    """Return whether a resource passes the filters on what no column has."""
    modified_s = resource.get("LastModifiedTime", resource["CreationTime"])
    return (
        params.get("StatusEquals", resource.get(status)) == resource.get(status)
        and ("LastModifiedTimeBefore" not in params or modified_s < params["LastModifiedTimeBefore"])
        and ("LastModifiedTimeAfter" not in params or modified_s > params["LastModifiedTimeAfter"])
    )
