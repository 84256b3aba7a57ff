"""Pages of the Describe operations of Application Auto Scaling. Pure."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.state.records import Json, StoredRecord
from headrace.wire.aws.errors import AwsError, validation_error
from headrace.wire.aws.paging import Paginator

RecordT = TypeVar("RecordT", bound=StoredRecord)

MAX_RESULTS = 50
_PAGES = Paginator(
    invalid_token=lambda: AwsError("InvalidNextTokenException", "The next token is invalid: begin without it.")
)


def page(
    records: Sequence[RecordT],
    params: Json,
    *,
    member: str,
    render: Callable[[RecordT], Json],
    is_newest_first: bool = False,
    max_results: int = MAX_RESULTS,
) -> Json:
    """
    Return the answer of a Describe operation: one page, ordered by time of creation.

    Args:
        records: All records that fit the filters.
        params: The request's parameters.
        member: Name of the list in the answer.
        render: Renders a record as the answer has it.
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
    return {member: [render(record) for record in chosen], **token}


def _key(record: StoredRecord) -> tuple[float, str]:
    return record.created_s, record.name
