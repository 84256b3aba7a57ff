"""Metrics of the engine's steps and choices."""

from headrace.core.metrics import Metrics
from headrace.engine.core.observer import ChoiceReport, StepReport


class MetricsObserver:
    """An `EngineObserver` that feeds histograms; only the engine's thread feeds these."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def step_finished(self, report: StepReport) -> None:
        """Record the duration of a step."""
        self._metrics.step_s.observe(report.seconds)

    def choice_finished(self, report: ChoiceReport) -> None:
        """Record the time that a choice waited in the queue."""
        if report.queue_s is not None:
            self._metrics.queue_s.observe(report.queue_s)

    def step_failed(self) -> None:
        """Record nothing: the engine logs the failure, and its requests are counted as they are answered."""
