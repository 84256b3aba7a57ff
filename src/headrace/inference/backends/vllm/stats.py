"""vLLM's statistics as ours: its scheduler reports after each step, and the counts since the start are kept here."""

from dataclasses import dataclass, field
from typing import Any

from headrace.core.generation import EngineStats


@dataclass(slots=True)
class Totals:
    """Counts since the server was ready."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    steps: int = 0


@dataclass(slots=True)
class StepStats:
    """The last report of the scheduler, and totals. On the event loop only."""

    num_blocks: int = 0
    block_tokens: int = 0
    num_reports: int = 0
    """Steps that have ended, those of the warm-up too."""
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    """Share of the blocks that running requests hold."""
    totals: Totals = field(default_factory=Totals)

    def record(self, scheduler: Any, iteration: Any) -> None:
        """Record a report: `SchedulerStats` and `IterationStats` of vLLM, each None if the step had none."""
        self.num_reports += 1
        if scheduler is not None:
            self.num_waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
            self.kv_cache_usage = scheduler.kv_cache_usage
            drafts = scheduler.spec_decoding_stats
            if drafts is not None:
                self.totals.drafted_tokens += drafts.num_draft_tokens
                self.totals.accepted_tokens += drafts.num_accepted_tokens
        if iteration is not None:
            self.totals.steps += 1
            self.totals.preemptions += iteration.num_preempted_reqs
            self.totals.output_tokens += iteration.num_generation_tokens

    def engine_stats(self, num_open: int) -> EngineStats:
        """
        Return our statistics.

        Args:
            num_open: Choices that have not ended. vLLM reports nothing more once all have, so its last report may
                still count them.
        """
        usage = self.kv_cache_usage if num_open else 0.0
        num_waiting = min(self.num_waiting, num_open)
        num_used = round(usage * self.num_blocks)
        totals = self.totals
        return EngineStats(
            num_running=num_open - num_waiting,
            num_waiting=num_waiting,
            num_blocks=self.num_blocks,
            num_free_blocks=self.num_blocks - num_used,
            block_tokens=self.block_tokens,
            prompt_tokens_total=totals.prompt_tokens,
            cached_tokens_total=totals.cached_tokens,
            output_tokens_total=totals.output_tokens,
            drafted_tokens_total=totals.drafted_tokens,
            accepted_tokens_total=totals.accepted_tokens,
            preemptions_total=totals.preemptions,
            steps_total=totals.steps,
            tokens_in_flight=num_used * self.block_tokens,
        )
