"""Parts that the handlers share: the target that a request names, the records that it selects, pages of them. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from headrace.autoscaling.planning.targets import (
    COMPONENT_DIMENSION,
    NAMESPACE,
    VARIANT_DIMENSION,
    TargetKey,
    TargetMembers,
)
from headrace.state.records import Json, Record, StoredRecord, Unreadable, readable
from headrace.wire.aws.errors import AwsError, validation_error
from headrace.wire.aws.paging import Paginator

MembersT = TypeVar("MembersT", bound=TargetMembers)
StatusT = TypeVar("StatusT")
RecordT = TypeVar("RecordT", bound=StoredRecord)

MAX_RESULTS = 50
_PAGES = Paginator(
    invalid_token=lambda: AwsError("InvalidNextTokenException", "The next token is invalid: begin without it.")
)
_CONCURRENCY_DIMENSION = "sagemaker:variant:DesiredProvisionedConcurrency"


def read_key(params: Json) -> TargetKey:
    """
    Return the target that a request names.

    Raises:
        AwsError: Headrace does not scale it.
    """
    resource_id, dimension = params["ResourceId"], params["ScalableDimension"]
    if dimension == _CONCURRENCY_DIMENSION:
        raise validation_error(
            f"{dimension} is not supported by Headrace: a serverless variant is one worker that always runs. "
            f"Use {VARIANT_DIMENSION} on a variant with instances."
        )
    key = TargetKey.parse(resource_id, dimension)
    if key is None or params.get("ServiceNamespace", NAMESPACE) != NAMESPACE:
        raise validation_error(
            "Unsupported service namespace, resource type or scalable dimension. Headrace scales "
            f"endpoint/NAME/variant/NAME by {VARIANT_DIMENSION} and inference-component/NAME by {COMPONENT_DIMENSION}, "
            "both of the namespace sagemaker."
        )
    return key


def object_not_found(what: str, key: TargetKey, more: str = "") -> AwsError:
    """Return AWS's error for a missing target, policy or scheduled action; `what` ends with "for"."""
    where = f"service namespace: {NAMESPACE}, resource ID: {key.resource_id}, scalable dimension: {key.dimension}"
    return AwsError("ObjectNotFoundException", f"{what} {where}{more}")


def require_readable(record: Record[Any, Any] | Unreadable) -> Record[Any, Any]:
    """
    Return a record that could be decoded.

    Raises:
        AwsError: It could not be decoded.
    """
    if isinstance(record, Unreadable):
        raise validation_error(
            f"The record of {record.name} cannot be read ({record.reason}). Delete it, and create it again."
        )
    return record


def selected(
    records: Iterable[Record[MembersT, StatusT] | Unreadable], params: Json
) -> list[Record[MembersT, StatusT]]:
    """
    Return the readable records that ServiceNamespace, ResourceId and ScalableDimension of a Describe request select.

    Raises:
        AwsError: ScalableDimension is given without ResourceId.
    """
    resource_id, dimension = params.get("ResourceId"), params.get("ScalableDimension")
    if dimension and not resource_id:
        raise validation_error("ScalableDimension is given without ResourceId. Give both, or neither.")
    return [
        record
        for record in readable(records)
        if params["ServiceNamespace"] == record.spec.service_namespace
        and resource_id in (None, record.spec.resource_id)
        and dimension in (None, record.spec.scalable_dimension)
    ]


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
