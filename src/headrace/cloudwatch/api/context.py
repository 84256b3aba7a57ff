"""The part of a call's context that CloudWatch's handlers need."""

from typing import Protocol

from headrace.cloudwatch.metrics.metric import SeriesStore
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope


class CloudWatchCall(Protocol):
    """The context of one call, as CloudWatch's handlers need it."""

    @property
    def store(self) -> Store:
        """The records, alarms among them."""
        ...

    @property
    def series(self) -> SeriesStore:
        """The datapoints of all metrics."""
        ...

    @property
    def aws_scope(self) -> AwsScope:
        """The account and region of the platform."""
        ...

    @property
    def now_s(self) -> float:
        """The time of the call, seconds since 1970."""
        ...

    @property
    def is_strict(self) -> bool:
        """True to refuse what AWS refuses, even where it would do no harm."""
        ...
