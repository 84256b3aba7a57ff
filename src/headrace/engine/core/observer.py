"""
What an engine tells about itself while it works, in plain numbers, for metrics.

Called on the engine's thread: an observer must be quick and must not raise.
"""

from dataclasses import dataclass
from typing import Protocol

from headrace.core.generation import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step that was executed."""

    seconds: float
    """Inside the runner."""
    overhead_s: float
    """Planning, arrays, text: outside the runner."""
    num_tokens: int
    num_decodes: int
    num_sequences: int
    num_preempted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceReport:
    """One choice that has ended."""

    request_id: str
    index: int
    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    num_preemptions: int
    queue_s: float | None
    """From arrival to the first step; None if it never ran."""
    ttft_s: float | None
    """From arrival to the first token; None if there was none."""
    total_s: float


class EngineObserver(Protocol):
    """Gets the reports."""

    def step_finished(self, report: StepReport) -> None:
        """A step was executed."""
        ...

    def choice_finished(self, report: ChoiceReport) -> None:
        """A choice has ended, for whatever reason."""
        ...

    def step_failed(self) -> None:
        """A step raised; the requests in it ended with ERROR."""
        ...


class NoObserver:
    """Ignores everything."""

    def step_finished(self, report: StepReport) -> None:
        """Ignore it."""

    def choice_finished(self, report: ChoiceReport) -> None:
        """Ignore it."""

    def step_failed(self) -> None:
        """Ignore it."""
