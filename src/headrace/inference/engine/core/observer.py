"""
Reports of a running engine for metrics.

Observers are called on the engine thread: they must be quick and must not raise.
"""

from dataclasses import dataclass
from typing import Protocol

from headrace.core.generation import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The timing and size of one executed step."""

    seconds: float
    """Time inside the runner."""
    overhead_s: float
    """Time outside the runner: planning, arrays, text."""
    num_tokens: int
    num_decodes: int
    num_sequences: int
    num_preempted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceReport:
    """The counts and times of one finished choice."""

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
    """A receiver of the engine's reports."""

    def step_finished(self, report: StepReport) -> None:
        """Handle the report of an executed step."""
        ...

    def choice_finished(self, report: ChoiceReport) -> None:
        """Handle the report of a finished choice, whatever its reason."""
        ...

    def step_failed(self) -> None:
        """Handle a failed step, whose requests ended with ERROR."""
        ...


class NoObserver:
    """An observer that ignores all reports."""

    def step_finished(self, report: StepReport) -> None:
        """Ignore the report."""

    def choice_finished(self, report: ChoiceReport) -> None:
        """Ignore the report."""

    def step_failed(self) -> None:
        """Ignore the failed step."""
