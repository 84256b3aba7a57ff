"""
Reports of a running engine for metrics.

Observers are called on the engine thread: they must be quick and must not raise.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.inference.engine.core.choice import Choice
    from headrace.inference.engine.core.step_plan import StepPlan


class EngineObserver:
    """A receiver of the engine's reports; this one ignores them."""

    def step_finished(self, plan: "StepPlan", seconds: float) -> None:
        """Handle an executed step, which took `seconds` in the runner."""

    def choice_finished(self, choice: "Choice") -> None:
        """Handle the end of a choice, whatever its reason."""

    def step_failed(self) -> None:
        """Handle a failed step, whose requests ended with ERROR."""
