"""The context of an API call: what a handler gets besides the parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.cloudwatch.metrics.metric import SeriesStore
from headrace.cloudwatch.series.memory import MemorySeries
from headrace.control.model.images import OwnImage
from headrace.control.model.log_reader import LogReader
from headrace.control.model.names import TITLES as _TITLES
from headrace.control.model.names import arn_of, find, unreadable_message
from headrace.state.records import AnyKind, Kind, Record, Unreadable
from headrace.state.store import Store
from headrace.wire.aws.errors import AwsError, not_found, validation_error
from headrace.wire.aws.scope import AwsScope

SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The context of one API call."""

    store: Store
    logs: LogReader
    aws_scope: AwsScope
    identity_arn: str
    """The caller: an assumed role."""
    now_s: float
    request_id: str
    is_strict: bool = False
    """Refuse what AWS refuses; otherwise what does no harm is accepted."""
    own_images: Mapping[str, OwnImage] = field(default_factory=dict)
    series: SeriesStore = field(default_factory=MemorySeries)
    """CloudWatch's metrics."""

    def arn(self, kind: AnyKind, name: str) -> str:
        """Return the ARN of a resource."""
        return arn_of(self.aws_scope, kind, name)

    def get(self, kind: Kind[SpecT, StatusT], name: str) -> Record[SpecT, StatusT]:
        """
        Read a record that the operation depends on.

        Raises:
            AwsError: "Could not find ..."; waiters and SDKs read that text. Or it cannot be decoded.
        """
        record = self.find(kind, name)
        if isinstance(record, Unreadable):
            raise validation_error(unreadable_message(record))
        return record

    def find(self, kind: Kind[SpecT, StatusT], name: str) -> Record[SpecT, StatusT] | Unreadable:
        """
        Read a record that need not be readable.

        Raises:
            AwsError: "Could not find ..."; waiters and SDKs read that text.
        """
        record = find(self.store, kind, name)
        if record is None:
            raise not_found(_TITLES[kind], self.arn(kind, name))
        return record

    def refuse_existing(self, kind: AnyKind, name: str) -> None:
        """
        Refuse a name that is taken, in any case.

        Raises:
            AwsError: "Cannot create already existing ..."; SDKs read that text.
        """
        if find(self.store, kind, name) is not None:
            raise already_exists(_TITLES[kind], self.arn(kind, name))


Handler = Callable[[CallContext, dict[str, Any]], dict[str, Any]]
"""Parameters by the model's names in, members of the result out; raises `AwsError`. Blocks for a moment (the store)."""


def already_exists(title: str, arn: str) -> AwsError:
    """Return SageMaker's error for a name that is taken."""
    return validation_error(f'Cannot create already existing {title} "{arn}".')


def tags_of(params: dict[str, Any]) -> dict[str, str]:
    """
    The inline `Tags` of a creation.

    Raises:
        AwsError: a key stands there twice, or begins with `aws:`.
    """
    tags: dict[str, str] = {}
    for tag in params.get("Tags") or []:
        key = tag["Key"]
        if key in tags:
            raise validation_error(f"Duplicate tag keys found: {key}. Tag keys are unique.")
        if key.lower().startswith("aws:"):
            raise validation_error(f"The tag key {key} begins with aws:, which is reserved. Choose another one.")
        tags[key] = tag["Value"]
    return tags


def without(params: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a copy without some members."""
    return {name: value for name, value in params.items() if name not in names}
