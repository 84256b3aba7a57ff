"""What the engine tells about itself, as metrics."""

from headrace.core.metrics import Metrics
from headrace.engine.core.observer import ChoiceReport, StepReport


class MetricsObserver:
    """An `EngineObserver` that feeds distributions; it runs on the engine's thread, which alone feeds these."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def step_finished(self, report: StepReport) -> None:
        """A step was executed."""
        self._metrics.step_s.observe(report.seconds)

    def choice_finished(self, report: ChoiceReport) -> None:
        """A choice has ended."""
        if report.queue_s is not None:
            self._metrics.queue_s.observe(report.queue_s)

    def step_failed(self) -> None:
        """The engine logs it; its requests are counted as they are answered."""
