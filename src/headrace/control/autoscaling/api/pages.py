"""Pages of the Describe operations of Application Auto Scaling. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from headrace.state.records import RawRecord
from headrace.wire.aws.errors import AwsError, validation_error
from headrace.wire.aws.paging import Paginator

MAX_RESULTS = 50
_PAGES = Paginator(
    invalid_token=lambda: AwsError("InvalidNextTokenException", "The next token is invalid: begin without it.")
)


def page(
    records: Sequence[RawRecord],
    params: dict[str, Any],
    *,
    member: str,
    shown: Callable[[RawRecord], dict[str, Any]],
    is_newest_first: bool = False,
    max_results: int = MAX_RESULTS,
) -> dict[str, Any]:
    """
    Return the answer of a Describe operation: one page, ordered by time of creation.

    Args:
        records: All records that fit the filters.
        params: The request's parameters.
        member: Name of the list in the answer.
        shown: Renders a record as the answer has it.
        is_newest_first: Order by falling time of creation.
        max_results: Number of records that fit on a page; also the default.

    Raises:
        AwsError: The token does not belong to this list, or MaxResults is below 1.
    """
    size = params.get("MaxResults", max_results)
    if size < 1:
        raise validation_error(f"MaxResults is {size}; expected 1 to {max_results}.")
    chosen, token = _PAGES.page(
        records, params, listing=member, key=_key, size=min(size, max_results), is_descending=is_newest_first
    )
    return {member: [shown(record) for record in chosen], **token}


def _key(record: RawRecord) -> tuple[float, str]:
    return record.created_s, record.name
