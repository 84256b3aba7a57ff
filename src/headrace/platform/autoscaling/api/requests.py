"""Parts that the handlers share: the target that a request names, the records that it selects, pages of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from headrace.platform.autoscaling.planning.targets import (
    COMPONENT_DIMENSION,
    NAMESPACE,
    SCALABLE_TARGET,
    VARIANT_DIMENSION,
    TargetKey,
    TargetMembers,
)
from headrace.platform.control.api.context import CallContext
from headrace.platform.state.records import AlreadyExists, Conflict, Json, Kind, Record, Unreadable
from headrace.platform.state.selection import ALL, Entry, Selection
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.errors import AwsError, validation_error
from headrace.serving.wire.aws.paging import Paginator

MembersT = TypeVar("MembersT", bound=TargetMembers)
SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")

MAX_RESULTS = 50
_PAGES = Paginator(
    invalid_token=lambda: AwsError("InvalidNextTokenException", "The next token is invalid: begin without it.")
)
_CONCURRENCY_DIMENSION = "sagemaker:variant:DesiredProvisionedConcurrency"


def read_key(params: Json) -> TargetKey:
    """Return the target that a request names. Raises `AwsError`: Headrace does not scale it."""
    resource_id, dimension = params["ResourceId"], params["ScalableDimension"]
    if dimension == _CONCURRENCY_DIMENSION:
        raise validation_error(
            f"{dimension} is not supported by Headrace: a serverless variant has at most one worker. "
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


def read_registered(context: CallContext, params: Json) -> TargetKey:
    """Return the target that a request names. Raises `AwsError`, also if it is not registered."""
    key = read_key(params)
    if context.store.get(SCALABLE_TARGET, key.name) is None:
        raise object_not_found("No scalable target registered for", key)
    return key


def create(
    context: CallContext, kind: Kind[SpecT, StatusT], name: str, spec: SpecT, *, tags: Mapping[str, str] = {}
) -> Record[SpecT, StatusT]:
    """Add a record; if another call has added it meanwhile, `Conflict` makes this one run again, as an update."""
    try:
        return context.store.create(kind, name, spec=spec, tags=tags)
    except AlreadyExists as error:
        raise Conflict(str(error)) from None


def require_readable(record: Record[Any, Any] | Unreadable) -> Record[Any, Any]:
    """Return a record that could be decoded. Raises `AwsError`: it could not be decoded."""
    if isinstance(record, Unreadable):
        raise validation_error(
            f"The record of {record.name} cannot be read ({record.reason}). Delete it, and create it again."
        )
    return record


def _is_selected(members: TargetMembers, params: Json) -> bool:
    """Return whether ServiceNamespace, ResourceId and ScalableDimension of a Describe request select a record."""
    return (
        params["ServiceNamespace"] == members.service_namespace
        and params.get("ResourceId") in (None, members.resource_id)
        and params.get("ScalableDimension") in (None, members.scalable_dimension)
    )


def of_resource(params: Json) -> Selection:
    """Return the selection of the policies or scheduled actions of the request's resource, or of all."""
    return Selection(name_prefix=f"{params['ResourceId']}|") if "ResourceId" in params else ALL


def check_selection(params: Json, *, resource: str = "ResourceId") -> None:
    """Refuse a Describe request that names a ScalableDimension without `resource`."""
    if params.get("ScalableDimension") and not params.get(resource):
        raise validation_error(f"ScalableDimension is given without {resource}. Give both, or neither.")


def page(
    store: Store,
    kind: Kind[MembersT, StatusT],
    params: Json,
    *,
    member: str,
    fits: Callable[[Record[MembersT, StatusT]], bool],
    render: Callable[[Record[MembersT, StatusT]], Json],
    selection: Selection = ALL,
    max_results: int = MAX_RESULTS,
) -> Json:
    """
    Return the answer of a Describe operation: one page of readable records, ordered by time of creation.

    The `selection` is evaluated by the database, of which only as many records are read as the page needs; `fits` are
    filters beside those on the target. At most `max_results` records fit on a page, by default as many.

    Raises `AwsError`: the token does not belong to this list, or MaxResults is below 1.
    """
    size = params.get("MaxResults", max_results)
    if size < 1:
        raise validation_error(f"MaxResults is {size}; expected 1 to {max_results}.")
    last = _PAGES.last_key(params, listing=member, like=(0.0, ""))
    after = None if last is None else Entry(created_s=float(last[0]), name=str(last[1]))
    later = replace(selection, after=after)
    fitting = (
        record
        for record in store.each(kind, later)
        if isinstance(record, Record) and _is_selected(record.spec, params) and fits(record)
    )
    chosen, token = _PAGES.cut(
        fitting, listing=member, key=lambda record: (record.created_s, record.name), size=min(size, max_results)
    )
    return {member: [render(record) for record in chosen], **token}
