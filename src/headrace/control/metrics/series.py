"""What the handlers of CloudWatch need of measurements; `monitoring.series.MemorySeries` is one."""

from collections.abc import Sequence
from typing import Protocol

from headrace.monitoring.metrics import Metric, Point


class Series(Protocol):
    """Takes measurements and reads them back."""

    def put_point(self, metric: Metric, point: Point) -> None:
        """Take what was put together elsewhere; it counts in the periods that hold its start."""
        ...

    def read(self, metric: Metric, *, start_s: float, end_s: float, period_s: int) -> Sequence[Point]:
        """The points of [start_s, end_s), oldest first; the first one may begin before `start_s`, which it holds."""
        ...

    def list(self, *, namespace: str | None = None, name: str | None = None, since_s: float = ...) -> Sequence[Metric]:
        """The metrics that are kept and were measured at `since_s` or later."""
        ...
