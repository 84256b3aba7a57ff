"""The context of an API call, and what the operations on all of SageMaker's resources share: quotas, lists and tags."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest, nsmallest
from types import MappingProxyType
from typing import Any, Final, TypeVar

from headrace.platform.account.context import AccountCall
from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.control.jumpstart.catalogue import Catalogue
from headrace.platform.control.model.cards import MODEL_CARD
from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.definitions import ENDPOINT_CONFIG, MODEL
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.control.model.experiment import INFERENCE_EXPERIMENT
from headrace.platform.control.model.images import OwnImage
from headrace.platform.control.model.jobs import (
    AI_BENCHMARK_JOB,
    AI_WORKLOAD_CONFIG,
    OPTIMIZATION_JOB,
    RECOMMENDATIONS_JOB,
)
from headrace.platform.control.model.names import ABSENT, PRESENT, TITLES, arn_of, parse_arn, unreadable_message
from headrace.platform.control.model.packages import MODEL_PACKAGE, MODEL_PACKAGE_GROUP
from headrace.platform.control.model.transform_job import TRANSFORM_JOB
from headrace.platform.insights.runner import QueryRunner
from headrace.platform.state.records import AlreadyExists, AnyKind, Json, Kind, Record, Unreadable
from headrace.platform.state.selection import Entry, Selection
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.errors import AwsError, not_found, validation_error
from headrace.serving.wire.aws.paging import Key, Paginator
from headrace.serving.wire.aws.tags import list_tags as list_of_tags
from headrace.serving.wire.aws.tags import merge_tags

SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext(AccountCall):
    logs: PlatformLogs
    queries: QueryRunner = field(default_factory=QueryRunner)
    operations: Collection[tuple[str, str]] = ()
    """Services and operations that the platform has."""
    read_object: Callable[[str, int], bytes] | None = None
    """Reads an object of at most so many bytes by its `s3://` address, and blocks; None without an object storage."""
    own_images: Mapping[str, OwnImage] = field(default_factory=dict)
    jumpstart: Catalogue = field(default_factory=Catalogue)

    def arn(self, kind: AnyKind, name: str) -> str:
        return arn_of(self.aws_scope, kind, name)

    def name_of(self, kind: AnyKind, name_or_arn: str) -> str:
        """Return the name of a resource that is given by its name or its ARN. Raises `AwsError`: another account."""
        if not name_or_arn.startswith("arn:"):
            return name_or_arn
        found = parse_arn(name_or_arn)
        if found is None or found[0] is not kind or self.arn(*found) != name_or_arn.lower():
            raise _absent(kind, name_or_arn)
        return found[1]

    def get(self, kind: Kind[SpecT, StatusT], name: str) -> Record[SpecT, StatusT]:
        """Read a record that the operation depends on, as `find` does. Raises `AwsError`, also if unreadable."""
        record = self.find(kind, name)
        if isinstance(record, Unreadable):
            raise validation_error(unreadable_message(record))
        return record

    def find(self, kind: Kind[SpecT, StatusT], name: str) -> Record[SpecT, StatusT] | Unreadable:
        """Read a record, even an unreadable one. Raises `AwsError` in AWS's words, which SDKs match."""
        record = self.store.find(kind, name)
        if record is None:
            raise _absent(kind, self.arn(kind, name))
        return record

    def refuse_existing(self, kind: AnyKind, name: str) -> None:
        """Refuse a name that is taken, ignoring case, in AWS's words, which SDKs match."""
        if self.store.find(kind, name) is not None:
            raise self._already_exists(kind, name)

    def create(self, kind: Kind[SpecT, StatusT], name: str, *, spec: SpecT, params: Json) -> str:
        """Add a record with the call's `Tags`, and return its ARN; refuse a taken name, and too many records."""
        check_number(self.store, kind)
        try:
            self.store.create(kind, name, spec=spec, tags=tags_of(params))
        except AlreadyExists:
            raise self._already_exists(kind, name) from None
        return self.arn(kind, name)

    def _already_exists(self, kind: AnyKind, name: str) -> AwsError:
        arn = self.arn(kind, name)
        if kind in PRESENT:
            code, message = PRESENT[kind]
            return AwsError(code, message.format(arn=arn, name=name))
        return validation_error(f'Cannot create already existing {TITLES[kind]} "{arn}".')


def _absent(kind: AnyKind, arn: str) -> AwsError:
    return validation_error(ABSENT[kind].format(arn=arn)) if kind in ABSENT else not_found(TITLES[kind], arn)


Handler = Callable[[CallContext, Json], Json]
"""Takes the call's parameters and returns the members of the result, or raises `AwsError`. Blocks on the store."""


def tags_of(params: Json, *, before: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the tags of a resource with the `Tags` of a call. Raises `AwsError`, as `merge_tags` does."""
    return merge_tags(params.get("Tags"), validation_error, before=before)


def without(params: Json, *names: str) -> Json:
    return {name: value for name, value in params.items() if name not in names}


MAX_RECORDS: Final[Mapping[AnyKind, int]] = {
    MODEL: 10_000,
    ENDPOINT_CONFIG: 10_000,
    ENDPOINT: 5_000,
    INFERENCE_COMPONENT: 5_000,
    MODEL_CARD: 10_000,
    MODEL_PACKAGE: 10_000,
    MODEL_PACKAGE_GROUP: 10_000,
    TRANSFORM_JOB: 10_000,
    OPTIMIZATION_JOB: 10_000,
    RECOMMENDATIONS_JOB: 10_000,
    AI_BENCHMARK_JOB: 10_000,
    AI_WORKLOAD_CONFIG: 10_000,
    INFERENCE_EXPERIMENT: 1_000,
}
MAX_ENVIRONMENT_BYTES: Final = 32 * 1024
"""All names and values of a container's environment. Source: SageMaker API reference, ContainerDefinition."""


def check_number(store: Store, kind: AnyKind) -> None:
    """Refuse a new resource beyond the quota of its kind. Raises `AwsError`: ResourceLimitExceeded, in AWS's words."""
    number, most = store.count(kind), MAX_RECORDS[kind]
    if number >= most:
        raise AwsError(
            "ResourceLimitExceeded",
            f"The account-level service limit 'Number of {TITLES[kind]}s' is {most}, with current utilization of "
            f"{number} and a request delta of 1. Delete {TITLES[kind]}s that are no longer used.",
        )


def check_environment(container: Json) -> None:
    """Refuse a container whose environment is too large. Raises `AwsError`: ValidationException."""
    environment: Mapping[str, str] = container.get("Environment") or {}
    size = sum(len(text.encode(errors="surrogatepass")) for pair in environment.items() for text in pair)
    if size > MAX_ENVIRONMENT_BYTES:
        raise validation_error(
            f"The names and values in Environment have {size} bytes; expected at most {MAX_ENVIRONMENT_BYTES}. "
            "Put large values into a file of the model."
        )


PAGE_SIZE = 10
"""Default of `MaxResults`. Source: SageMaker API reference, ListEndpoints."""
PAGES = Paginator(
    invalid_token=lambda: validation_error(
        "Invalid NextToken. It belongs to a list in another order, or to another service: start again without it."
    )
)


def list_page(
    read: Callable[[Selection], Iterator[Json]],
    params: Json,
    *,
    word: str,
    member: str | None = None,
    status: str | None = None,
) -> Json:
    """
    Answer a List operation by the summaries that `read` yields, by name or time of creation: only as many as it needs.

    AWS forms members from the `word` for the kind: `EndpointName`, `EndpointStatus` and `Endpoints`; where it does not,
    `member` is the name of the list and `status` that of the status.
    """
    name, status, member = f"{word}Name", status or f"{word}Status", member or f"{word}s"
    sort_by, size = params.get("SortBy", "CreationTime"), params.get("MaxResults", PAGE_SIZE)
    is_descending = params.get("SortOrder", "Descending") == "Descending"
    keys: dict[str, tuple[Callable[[Json], Key], Key]] = {
        "Name": (lambda resource: (resource[name],), ("",)),
        "CreationTime": (lambda resource: (resource["CreationTime"], resource[name]), (0.0, "")),
        "Status": (lambda resource: (resource[status], resource[name]), ("", "")),
    }
    key, example = keys[sort_by]
    listing = f"{member} by {sort_by}"
    last = PAGES.last_key(params, listing=listing, like=example)
    after = None
    if last is not None and sort_by != "Status":
        *created_s, last_name = last
        after = Entry(name=str(last_name), created_s=float(created_s[0]) if created_s else 0.0)
    selection = Selection(
        name_part=params.get("NameContains", ""),
        created_after_s=params.get("CreationTimeAfter"),
        created_before_s=params.get("CreationTimeBefore"),
        order="created" if sort_by == "CreationTime" else "name",
        is_descending=is_descending,
        after=after,
    )
    fitting: Iterable[Json] = (resource for resource in read(selection) if _fits(resource, params, status))
    if sort_by == "Status":  # which no column has
        later = (item for item in fitting if last is None or (key(item) < last if is_descending else key(item) > last))
        fitting = (nlargest if is_descending else nsmallest)(size + 1, later, key=key)
    page, token = PAGES.cut(fitting, listing=listing, key=key, size=size)
    return {member: page, **token}


def _fits(resource: Json, params: Json, status: str) -> bool:
    """Return whether a resource passes the filters on what no column has."""
    modified_s = resource.get("LastModifiedTime", resource["CreationTime"])
    return (
        params.get("StatusEquals", resource.get(status)) == resource.get(status)
        and ("LastModifiedTimeBefore" not in params or modified_s < params["LastModifiedTimeBefore"])
        and ("LastModifiedTimeAfter" not in params or modified_s > params["LastModifiedTimeAfter"])
    )


def add_tags(context: CallContext, params: Json) -> Json:
    record = _tagged(context, params["ResourceArn"])
    tags = tags_of(params, before=record.tags)
    context.store.update(record, tags=tags)
    return {"Tags": list_of_tags(tags)}


def list_tags(context: CallContext, params: Json) -> Json:
    """Answer ListTags with one page: a resource has at most 50 tags."""
    return {"Tags": list_of_tags(_tagged(context, params["ResourceArn"]).tags)}


def delete_tags(context: CallContext, params: Json) -> Json:
    """Answer DeleteTags; keys that do not exist are ignored."""
    record = _tagged(context, params["ResourceArn"])
    context.store.update(record, tags=without(record.tags, *params["TagKeys"]))
    return {}


def _tagged(context: CallContext, arn: str) -> Record[Any, Any] | Unreadable:
    parsed = parse_arn(arn)
    record = context.store.find(*parsed) if parsed is not None else None
    if record is None:
        raise not_found("resource", arn)
    return record
