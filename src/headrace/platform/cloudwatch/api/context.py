"""The part of a call's context that CloudWatch's handlers need."""

from dataclasses import dataclass, field

from headrace.platform.cloudwatch.metrics.metric import SeriesStore
from headrace.platform.cloudwatch.series.memory import MemorySeries
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.scope import AwsScope
from headrace.serving.wire.aws.sessions import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudWatchCall:
    """The context of one call, as CloudWatch's handlers need it."""

    store: Store
    aws_scope: AwsScope
    now_s: float
    is_strict: bool = False
    """Refuse everything that AWS refuses; in friendly mode, harmless deviations are accepted."""
    caller: str = ""
    """Id of the caller's access key; empty on an open platform."""
    session: Session | None = None
    """What the caller's temporary credentials are for."""
    series: SeriesStore = field(default_factory=MemorySeries)
    """The datapoints of all metrics."""
