"""vLLM's statistics as ours: its scheduler reports after each step, and the counts since the start are kept here."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headrace.core.engine_stats import EngineStats


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
    totals: "Counter[str]" = field(default_factory=Counter)
    """Counts since the server was ready, by their names in `EngineStats`."""

    def record(self, scheduler: Any, iteration: Any) -> None:
        """Record a report: `SchedulerStats` and `IterationStats` of vLLM, each None if the step had none."""
        self.num_reports += 1
        if scheduler is not None:
            self.num_waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
            self.kv_cache_usage = scheduler.kv_cache_usage
            drafts = scheduler.spec_decoding_stats
            if drafts is not None:
                self.totals["drafted_tokens_total"] += drafts.num_draft_tokens
                self.totals["accepted_tokens_total"] += drafts.num_accepted_tokens
        if iteration is not None:
            self.totals["steps_total"] += 1
            self.totals["preemptions_total"] += iteration.num_preempted_reqs
            self.totals["output_tokens_total"] += iteration.num_generation_tokens

    def engine_stats(self, num_open: int) -> EngineStats:
        """
        Return our statistics with `num_open` choices that have not ended.

        vLLM reports nothing more once all have, so its last report may still count them.
        """
        usage = self.kv_cache_usage if num_open else 0.0
        num_waiting = min(self.num_waiting, num_open)
        num_used = round(usage * self.num_blocks)
        return EngineStats(
            num_running=num_open - num_waiting,
            num_waiting=num_waiting,
            num_blocks=self.num_blocks,
            num_free_blocks=self.num_blocks - num_used,
            block_tokens=self.block_tokens,
            tokens_in_flight=num_used * self.block_tokens,
            **self.totals,
        )
