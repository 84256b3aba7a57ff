"""
The engine loop: `Engine.step()` schedules, executes, applies and emits.

Synchronous and single-threaded; `service` provides the thread and the callers. A step never raises because of a request
or a runner: if it fails, its requests end with an ERROR chunk, and the next step runs.
"""

from collections.abc import Callable, Iterable

from headrace.core.engine_stats import EngineStats
from headrace.core.generation import Chunk, FinishReason, TokenLogprob
from headrace.inference.engine.config import EngineLimits
from headrace.inference.engine.core.choice import Choice, prompt_token
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.core.scheduler import Scheduler
from headrace.inference.engine.core.sequence import SequencePhase
from headrace.inference.engine.core.step_input import LogitRows, StepBuilder
from headrace.inference.engine.core.step_plan import StepPlan
from headrace.inference.engine.core.step_time import StepTimeModel
from headrace.inference.engine.spec_decode.drafting import RowCostModel
from headrace.inference.engine.structured_output.constraint import GrammarMasks
from headrace.inference.engine.text.detokenizer import TokenTable
from headrace.inference.runner.step import Runner, StepOutput

_TOTALS = (
    "prompt_tokens_total",
    "cached_tokens_total",
    "output_tokens_total",
    "drafted_tokens_total",
    "accepted_tokens_total",
    "preemptions_total",
    "checkpoint_hits_total",
    "recomputed_tokens_total",
    "steps_total",
)
"""Fields of `EngineStats` that count since the start of the service."""
_MAX_FORCED_TOKENS = 16
"""Maximum number of forced tokens of a choice between two steps."""

Emitted = list[tuple[Choice, Chunk]]


class Engine:
    """Runs choices to completion, one step at a time."""

    def __init__(
        self,
        runner: Runner,
        table: TokenTable,
        limits: EngineLimits,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.step_times = StepTimeModel()
        self.row_costs = RowCostModel()
        self.scheduler = Scheduler(limits, runner.limits, self.step_times, self.row_costs, has_chunks=runner.is_causal)
        self.num_failures_in_row = 0
        """Consecutive failed steps."""
        self.last_failure: Exception | None = None
        self._runner = runner
        self._table = table
        self._masks = GrammarMasks()
        self._builder = StepBuilder(runner.limits, max_num_seqs=limits.max_num_seqs, masks=self._masks)
        self._choices: dict[int, Choice] = {}
        self._observer = EngineObserver()
        self._clock = clock
        self._totals = dict.fromkeys(_TOTALS, 0)
        self._step_seconds_total = self._step_thread_seconds_total = 0.0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, choice: Choice) -> None:
        self._choices[choice.sequence.arrival_id] = choice
        self.scheduler.add(choice.sequence)

    def abort(self, choices: Iterable[Choice], *, message: str) -> Emitted:
        """End choices and free their blocks; choices that have ended already are skipped."""
        return [
            (choice, self._end(choice, choice.finish(FinishReason.ABORT, message=message)))
            for choice in choices
            if choice.sequence.phase is not SequencePhase.DONE
        ]

    def step(self, before_execution: Callable[[], None] = lambda: None) -> Emitted:
        """Run the next step; `before_execution` is called right before the runner executes it and releases the GIL."""
        started_s = self._clock()
        plan = self.scheduler.schedule(started_s)
        # Before the arrays are built: they gather the sampling rows, which are written by slot at admission.
        self._note_queues(plan, started_s)
        if not plan.sequences:
            return []
        emitted: Emitted = []
        try:
            step, logit_rows = self._builder.build(plan)
            before_execution()
            executing_s = self._clock()
            output = self._runner.execute(step)
            # Only the runner's time: the models of step time and row cost predict what the runner takes.
            seconds = self._clock() - executing_s
            self._apply(plan, logit_rows, output, emitted)
        except Exception as error:  # noqa: BLE001 - an edge: whatever a step raises ends its requests, not the server
            # `emitted` keeps the chunks of choices that were applied before the error.
            self._fail(plan, error, emitted)
        else:
            self._measure(plan, seconds, num_threads=output.num_threads)
        return emitted

    def begin_service(self, observer: EngineObserver) -> None:
        """Reset the totals after the warm-up and report to `observer` from now on."""
        self._observer = observer
        self._totals = dict.fromkeys(self._totals, 0)
        self._step_seconds_total = self._step_thread_seconds_total = 0.0

    def stats(self) -> EngineStats:
        """Return current statistics; may be called from any thread."""
        scheduler, pool = self.scheduler, self.scheduler.pool
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_state_slots=self._runner.limits.num_state_slots,
            num_live_states=scheduler.states.num_live,
            num_checkpoints=scheduler.states.num_checkpoints,
            block_tokens=self._runner.limits.block_tokens,
            step_seconds_total=self._step_seconds_total,
            step_thread_seconds_total=self._step_thread_seconds_total,
            stored_tokens_total=scheduler.stored.num_read_blocks * self._runner.limits.block_tokens,
            tokens_in_flight=sum([s.num_computed_tokens for s in list(scheduler.running)]),
            **self._totals,
        )

    def _note_queues(self, plan: StepPlan, now_s: float) -> None:
        for sequence in plan.admitted:
            choice = self._choices[sequence.arrival_id]
            self._builder.admit(sequence, choice.extras)
            if choice.admitted_s is None:
                choice.admitted_s = now_s
                self._totals["prompt_tokens_total"] += sequence.num_prompt_tokens
                self._totals["cached_tokens_total"] += sequence.num_cached_tokens
            if self._runner.limits.num_state_slots:
                found_tokens = sequence.num_found_blocks * self._runner.limits.block_tokens
                self._totals["checkpoint_hits_total"] += sequence.num_computed_tokens > 0
                self._totals["recomputed_tokens_total"] += found_tokens - sequence.num_computed_tokens
        self._totals["preemptions_total"] += len(plan.preempted)

    def _apply(self, plan: StepPlan, logit_rows: LogitRows, output: StepOutput, emitted: Emitted) -> None:
        """Record the progress of sequences, give choices their tokens, remove those that ended."""
        # First, while `num_tokens` does not count this step's draws: blocks that became full enter the prefix cache.
        self.scheduler.commit(plan)
        for sequence, first_row, count in logit_rows.pooling:
            assert sequence.pool is not None
            sequence.pool.add(output.hidden[first_row : first_row + count])
        for sequence, first_row, count in logit_rows.scoring:
            self._score_prompt(self._choices[sequence.arrival_id], output, first_row, count)
        token_ids = output.token_ids.tolist()
        for sequence, first_row, count in logit_rows.drawing:
            choice = self._choices[sequence.arrival_id]
            self._take_tokens(choice, output, token_ids[first_row : first_row + count], first_row, emitted)
        self._totals["drafted_tokens_total"] += plan.num_drafted
        # Choices that ended above have left `_choices`.
        self._take_forced_tokens(
            [self._choices.get(sequence.arrival_id) for sequence, _, _ in logit_rows.drawing], emitted
        )
        emitted += self._end_without_answer(plan)

    def _take_tokens(
        self, choice: Choice, output: StepOutput, token_ids: list[int], first_row: int, emitted: Emitted
    ) -> None:
        """Give a choice its drawn token, and the next ones as long as the draft tokens before them are accepted."""
        sequence = choice.sequence
        wanted = sequence.params.logprobs
        for row, token_id in enumerate(token_ids, first_row):
            # The draft token lies where the drawn one will be appended; the last row verifies none.
            drafted = sequence.tokens[sequence.num_tokens] if row + 1 < first_row + len(token_ids) else -1
            logprob = None if wanted is None else float(output.logprobs[row])
            top = self._top(output, row, wanted) if wanted else ()
            chunk = choice.take_token(token_id, logprob, top)
            is_last = drafted != token_id or (chunk is not None and chunk.finish is not None)
            if is_last and row > first_row:
                self.scheduler.accept(sequence)  # before the choice ends, so that its full blocks are kept
            if chunk is not None:
                emitted.append((choice, chunk if chunk.finish is None else self._end(choice, chunk)))
            if is_last:
                self._totals["output_tokens_total"] += row - first_row + 1
                self._totals["accepted_tokens_total"] += row - first_row
                return

    def _take_forced_tokens(self, drew: Iterable[Choice | None], emitted: Emitted) -> None:
        """
        Append the tokens that grammars force, as if they had been drawn.

        The next step computes them together, like a prompt chunk, so the tokens of a JSON property's name do not cost
        a step each. Their logits are never computed: choices that report logprobs draw them one by one.
        """
        choices = [choice for choice in drew if choice is not None and choice.grammar_without_logprobs is not None]
        for _ in range(_MAX_FORCED_TOKENS):
            choices = [choice for choice in choices if choice.sequence.phase is not SequencePhase.DONE]
            self._masks.prepare([grammar for choice in choices if (grammar := choice.grammar_without_logprobs)])
            choices = [choice for choice in choices if self._take_forced_token(choice, emitted)]
            if not choices:
                return

    def _take_forced_token(self, choice: Choice, emitted: Emitted) -> bool:
        """Append the next token if the grammar allows only that one; return whether it did."""
        token_id = choice.forced_token()
        if token_id is None:
            return False
        self._totals["output_tokens_total"] += 1
        chunk = choice.take_token(token_id, None, ())
        if chunk is not None:
            emitted.append((choice, chunk if chunk.finish is None else self._end(choice, chunk)))
        return True

    def _end_without_answer(self, plan: StepPlan) -> Emitted:
        """End the choices without an answer (pooling, `max_new_tokens` 0) whose prompt is computed."""
        return [
            (choice, self._end(choice, choice.finish_prompt()))
            for sequence in plan.sequences[plan.num_decodes :]
            if sequence.num_computed_tokens >= sequence.max_total_tokens and sequence.phase is not SequencePhase.DONE
            for choice in (self._choices[sequence.arrival_id],)
        ]

    def _end(self, choice: Choice, chunk: Chunk) -> Chunk:
        """Remove a choice, free its blocks and report it."""
        if choice.sequence.slot >= 0:
            self._builder.release(choice.sequence.slot)
        self.scheduler.finish(choice.sequence)
        self._choices.pop(choice.sequence.arrival_id, None)
        if choice.on_end is not None:
            choice.on_end()
        self._observer.choice_finished(choice)
        return chunk

    def _fail(self, plan: StepPlan, error: Exception, emitted: Emitted) -> None:
        """End the choices of a failed step; the KV that it wrote was never registered."""
        self.num_failures_in_row += 1
        self.last_failure = error
        self._observer.step_failed()
        message = f"The engine failed in a step: {error}"
        for sequence in plan.sequences:
            if sequence.phase is not SequencePhase.DONE:
                choice = self._choices[sequence.arrival_id]
                emitted.append((choice, self._end(choice, choice.finish(FinishReason.ERROR, message=message))))

    def _measure(self, plan: StepPlan, seconds: float, *, num_threads: int) -> None:
        self.num_failures_in_row = 0
        has_chunk = len(plan.sequences) > plan.num_decodes
        self.step_times.observe(
            tokens=plan.num_tokens,
            attended=plan.attended,
            seconds=seconds,
            has_chunk=has_chunk and plan.num_decodes > 0,
        )
        if not has_chunk:
            self.row_costs.observe(sequences=plan.num_decodes, rows=plan.num_tokens, seconds=seconds)
        self._totals["steps_total"] += 1
        self._step_seconds_total += seconds
        self._step_thread_seconds_total += seconds * num_threads
        self._observer.step_finished(plan, seconds)

    def _score_prompt(self, choice: Choice, output: StepOutput, first_row: int, count: int) -> None:
        """Add the prompt tokens that `count` rows scored."""
        sequence = choice.sequence
        num_top = sequence.params.prompt_logprobs or 0
        for row in range(first_row, first_row + count):
            top = self._top(output, row, num_top) if num_top else ()
            token_id = int(output.token_ids[row])
            logprob, rank = float(output.logprobs[row]), int(output.ranks[row])
            choice.prompt.append(prompt_token(self._table, token_id, logprob, rank, top))
        sequence.num_scored_tokens += count

    def _top(self, output: StepOutput, row: int, count: int) -> tuple[TokenLogprob, ...]:
        ids = output.top_ids[row, :count].tolist()
        values = output.top_logprobs[row, :count].tolist()
        special = self._table.special_ids
        return tuple(
            TokenLogprob(token_id, self._table.text(token_id), value, token_id in special)
            for token_id, value in zip(ids, values, strict=True)
            if token_id >= 0
        )
