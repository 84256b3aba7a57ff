"""
The scheduler: which sequences compute how many tokens in the next step.

One token budget, no separate prefill and decode phases: every sequence has `num_computed_tokens`, and a step moves it
towards `num_tokens`. Decoding sequences come first (one token each, plus draft tokens where they pay off), then prompts
in prefill, then waiting sequences in order of arrival, those in the background last. Pure: no clock, I/O or threads.

Guarantees:
- The oldest running sequence always progresses and waiting ones are admitted in order: no starvation.
- On shortage of blocks the newest running sequence is preempted. Its full blocks stay in the prefix cache, so that
  computing it again is mostly cache hits. After `MAX_PREEMPTIONS` it is admitted only when the worst case fits.
- A sequence waits while another one computes the block that it needs next (`n` choices of one prompt, a burst of
  requests with one system prompt), and then finds that block in the cache.

- A sequence also waits while blocks of its prefix are read from a store (`stored_blocks`); younger ones overtake it.

A model with state layers reuses a prefix up to a checkpoint of its state, which `states` decides.
"""

from bisect import insort
from operator import attrgetter

from headrace.inference.engine.config import EngineLimits
from headrace.inference.engine.core.blocks import BlockPool, SessionBlocks
from headrace.inference.engine.core.sequence import Sequence, SequencePhase
from headrace.inference.engine.core.states import make_state_pool
from headrace.inference.engine.core.step_plan import StepPlan
from headrace.inference.engine.core.step_time import StepTimeModel
from headrace.inference.engine.core.stored_blocks import StoredBlocks
from headrace.inference.engine.spec_decode.drafting import RowCostModel, draft, drafting_pays
from headrace.inference.runner.step import RunnerLimits

MAX_PREEMPTIONS = 2
MIN_CHUNK_TOKENS = 16
"""Minimum chunk of the first prompt of a step, however slow steps are: guarantees progress."""
_LEAST_STRETCH = 1.5
"""Prompts may lengthen a decode step by this factor even beyond the limit: guarantees progress."""
_PATIENCE_S = 2.0
_MOST_STRETCH = 2.0
"""
The limit grows with the wait of the oldest prompt, to twice its value after `_PATIENCE_S`: with more requests than
decode within the limit, prompts would get what a full batch leaves, and wait for seconds at the same throughput.
"""
_WATERMARK = 0.01
_EXPECTED_OUTPUT_TOKENS = 128.0
_EXPECTATION_WEIGHT = 0.05


class Scheduler:
    """Owns the block pool and the running and waiting queues."""

    def __init__(
        self,
        limits: EngineLimits,
        runner: RunnerLimits,
        step_times: StepTimeModel,
        row_costs: RowCostModel,
        *,
        has_chunks: bool = True,
    ) -> None:
        """Create a scheduler; without `has_chunks`, the network attends to whole sequences, each one in one step."""
        assert limits.max_num_batched_tokens >= limits.max_num_seqs <= runner.max_step_rows
        self.states = make_state_pool(runner, max_num_seqs=limits.max_num_seqs)
        self.pool = BlockPool(runner.num_blocks, on_evict=self.states.forget)
        self.stored = StoredBlocks(self.pool, self.states)
        self._session_blocks = SessionBlocks(self.pool)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._limits = limits
        self._has_chunks = has_chunks
        self._block_tokens = runner.block_tokens
        self._max_rows = runner.max_step_rows
        self._step_times = step_times
        self._row_costs = row_costs
        self._free_slots = list(range(limits.max_num_seqs - 1, -1, -1))
        self._computing: dict[bytes, Sequence] = {}
        self._watermark = int(runner.num_blocks * _WATERMARK)
        self._expected_output_tokens = _EXPECTED_OUTPUT_TOKENS

    @property
    def has_work(self) -> bool:
        """True if a step can be planned now; with no sequence running, all that wait may wait for a read."""
        return bool(self.running or (self.waiting and not self.stored.num_reads))

    @property
    def is_idle(self) -> bool:
        """True if nothing holds blocks."""
        return not (self.running or self.waiting or self.stored.num_reads)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, which must fit into the pool on its own."""
        insort(self.waiting, sequence, key=attrgetter("rank"))

    def finish(self, sequence: Sequence) -> None:
        """Remove a sequence from its queue and free its blocks. Idempotent."""
        if sequence.phase is SequencePhase.RUNNING:
            self.running.remove(sequence)
            self._release(sequence)
            if sequence.pool is None:
                gap = sequence.num_output_tokens - self._expected_output_tokens
                self._expected_output_tokens += _EXPECTATION_WEIGHT * gap
        elif sequence.phase is SequencePhase.WAITING:
            self.waiting.remove(sequence)
        sequence.phase = SequencePhase.DONE

    def schedule(self, now_s: float) -> StepPlan:
        """Plan the next step and allocate the blocks that it needs; `now_s`: the clock of `Sequence.arrived_s`."""
        plan = StepPlan()
        num_yielded = self._make_way(plan)
        # Running streams come first. Blocks before plans: a sequence that is preempted for them is not in the step.
        self._grow_decoding(plan)
        self._plan_decodes(plan)
        # Drafts before prompts: with few sequences they are worth more, and they leave room for a least chunk.
        self._plan_drafts(plan)
        plan.limit_s = self._step_limit_s(plan, now_s)
        # Chunks share what the budget leaves; when one does not fit, no later one overtakes it.
        for sequence in sorted((s for s in self.running if not s.is_decoding), key=_chunk_order):
            if not self._plan_chunk(plan, sequence):
                break
        # After a preemption there are no blocks for more; the preempted sequence is the first to wait.
        if len(plan.preempted) == num_yielded:
            self._admit_waiting(plan)
        plan.states = self.states.plan_step(plan.sequences, plan.known_counts)
        return plan

    def commit(self, plan: StepPlan) -> None:
        """Mark the known tokens of the plan as computed, before drawn tokens are appended."""
        for sequence, count in zip(plan.sequences, plan.known_counts, strict=True):
            self._advance(sequence, sequence.num_computed_tokens + count)
        self.states.commit(plan.sequences)

    def accept(self, sequence: Sequence) -> None:
        """Mark all appended tokens but the last as computed: they were draft tokens, whose KV exists already."""
        self._advance(sequence, sequence.num_tokens - 1)

    # Decoding sequences first: each needs room for one more token; on shortage the newest one is preempted.

    def _grow_decoding(self, plan: StepPlan) -> None:
        block_tokens = self._block_tokens
        for sequence in list(self.running):
            # A victim may be the sequence itself, if it is the newest: its phase then ends the loop.
            while sequence.phase is SequencePhase.RUNNING and sequence.num_tokens > len(sequence.blocks) * block_tokens:
                if self.pool.num_free:
                    sequence.blocks += self.pool.allocate(1)
                else:
                    self._preempt(self._victim(), plan)

    def _plan_decodes(self, plan: StepPlan) -> None:
        decoding = [s for s in self.running if s.is_decoding]
        plan.sequences = decoding
        plan.counts = [1] * len(decoding)
        plan.num_decodes = plan.num_tokens = len(decoding)
        plan.attended = plan.decode_attended = sum([s.num_tokens for s in decoding])

    def _plan_drafts(self, plan: StepPlan) -> None:
        """Add draft tokens to decoding sequences, where a row yields more than it costs."""
        limits = self._limits
        # Each sequence may need a row of its own, and a prompt chunk some tokens of the budget.
        room = min(
            self._max_rows - limits.max_num_seqs, limits.max_num_batched_tokens - plan.num_tokens - MIN_CHUNK_TOKENS
        )
        if not plan.num_decodes or min(room, limits.max_draft_tokens) <= 0:
            return
        row_cost = self._row_costs.row_cost(sequences=plan.num_decodes)
        if not drafting_pays(row_cost):
            return
        for index, sequence in enumerate(plan.sequences):
            most = min(room, limits.max_draft_tokens, sequence.max_total_tokens - sequence.num_tokens - 1)
            if sequence.can_draft and most > 0:
                count = draft(sequence.matcher, sequence.tokens, sequence.num_tokens, row_cost=row_cost, most=most)
                count = self._fit_draft(sequence, count)
                plan.add_draft(index, count)
                room -= count

    def _fit_draft(self, sequence: Sequence, count: int) -> int:
        """Return how many draft tokens fit; one more block is allocated if enough are free."""
        room = len(sequence.blocks) * self._block_tokens - sequence.num_tokens
        if count > room and self.pool.num_free > len(self.running) + self._watermark:
            sequence.blocks += self.pool.allocate(1)
            room += self._block_tokens
        return min(count, room)

    def _victim(self) -> Sequence:
        spared = [s for s in self.running if s.num_preemptions < MAX_PREEMPTIONS]
        return max(spared or self.running, key=attrgetter("rank"))

    def _preempt(self, sequence: Sequence, plan: StepPlan) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.phase = SequencePhase.WAITING
        sequence.num_computed_tokens = 0
        sequence.num_registered_blocks = 0
        sequence.num_preemptions += 1
        insort(self.waiting, sequence, key=attrgetter("rank"))
        plan.preempted.append(sequence)

    def _make_way(self, plan: StepPlan) -> int:
        """Preempt background sequences, newest first, while others wait for slots or blocks; return how many."""
        num_urgent = sum(not s.is_background for s in self.waiting)
        while num_urgent and self.running and (newest := max(self.running, key=attrgetter("rank"))).is_background:
            hits = self._cached_blocks(self.waiting[0])
            if len(self._free_slots) >= num_urgent and (hits is None or self._fits(self.waiting[0], hits)):
                break
            self._preempt(newest, plan)
        return len(plan.preempted)

    # Prompt chunks: the rest of the budget, in tokens and in time.

    def _step_limit_s(self, plan: StepPlan, now_s: float) -> float | None:
        """Return how long streams may wait for this step, which is never less than the decodes alone and a bit more."""
        chunked = [s for s in self.running if not s.is_decoding] + self.waiting[:1]
        if self._limits.max_step_s is None or plan.num_decodes == 0 or not chunked:
            return None
        decoding_s = self._step_times.predict_s(
            tokens=plan.num_decodes + plan.num_drafted, attended=plan.decode_attended
        )
        limit_s = max(self._limits.max_step_s, _LEAST_STRETCH * decoding_s)
        # Forced tokens are a chunk of a stream that has begun: it does not wait as a prompt does.
        wait_s = now_s - min((s.arrived_s for s in chunked if s.num_output_tokens == 0), default=now_s)
        return limit_s * min(1 + wait_s / _PATIENCE_S, _MOST_STRETCH)

    def _plan_chunk(self, plan: StepPlan, sequence: Sequence) -> bool:
        """Add the largest chunk that fits into the step; return whether there was room."""
        wanted, room = sequence.num_tokens - sequence.num_computed_tokens, self._chunk_room(plan, sequence)
        count = min(wanted, room)
        if count <= 0 or (count < wanted and not self._has_chunks):
            return False
        plan.add(sequence, count)
        return True

    def _chunk_room(self, plan: StepPlan, sequence: Sequence) -> int:
        room = self._limits.max_num_batched_tokens - plan.num_tokens
        if sequence.scores_prompt and sequence.num_scored_tokens < sequence.num_prompt_tokens - 1:
            room = min(room, self._rows_left(plan))
        if plan.limit_s is None:
            return room
        timely = self._step_times.largest_chunk_tokens(
            tokens=plan.num_tokens,
            attended=plan.attended,
            context=sequence.num_computed_tokens,
            limit_s=plan.limit_s,
        )
        floor = MIN_CHUNK_TOKENS if len(plan.sequences) == plan.num_decodes else 0
        return min(room, max(timely, floor))

    def _rows_left(self, plan: StepPlan) -> int:
        """Return the logit rows left for scoring a prompt: others need one row each, and one chunk scores at a time."""
        if any(s.scores_prompt for s in plan.sequences[plan.num_decodes :]):
            return 0
        return self._max_rows - self._limits.max_num_seqs - plan.num_drafted + 1

    # Admission, oldest first.

    def _admit_waiting(self, plan: StepPlan) -> None:
        index = 0
        while index < len(self.waiting) and self._free_slots:
            sequence = self.waiting[index]
            hits = self._cached_blocks(sequence)
            if hits is None:
                index += 1  # what this one needs is being computed by another one, or read
                continue
            least = 1 if self._has_chunks else sequence.num_tokens
            # Nothing younger is admitted before the oldest that does not fit: large prompts do not starve.
            if not self._fits(sequence, hits):
                return
            if self.stored.begin_read(sequence, num_reused=len(hits), most=self._num_shareable(sequence)):
                index += 1
                continue
            if self._chunk_room(plan, sequence) < least or not self.states.has_room(sequence, len(hits)):
                return
            del self.waiting[index]
            self._admit(sequence, hits)
            plan.admitted.append(sequence)
            self._plan_chunk(plan, sequence)

    def _cached_blocks(self, sequence: Sequence) -> list[int] | None:
        """Return the cached blocks of a sequence's prefix; None if what follows them is being computed or read."""
        sequence.num_found_blocks = 0
        hits: list[int] = []
        for block_hash in sequence.hash_blocks(self._num_shareable(sequence), self._block_tokens):
            block = self.pool.find(block_hash)
            if block is None:
                if self.stored.is_reading(block_hash):
                    return None
                leader = self._computing.get(block_hash)
                if leader is not None:
                    self.states.request(leader, sequence)
                    return None
                break
            hits.append(block)
        sequence.num_found_blocks = len(hits)
        return self.states.reusable(sequence, hits)

    def _num_shareable(self, sequence: Sequence) -> int:
        """Return how many leading blocks need not be computed if their KV exists."""
        if not sequence.shares_blocks:
            return 0
        # The last token is always computed, since its logits draw the next one; so are prompt tokens without a score.
        reusable = sequence.num_scored_tokens if sequence.scores_prompt else sequence.num_tokens
        return min(reusable, sequence.num_tokens - 1) // self._block_tokens

    def _fits(self, sequence: Sequence, hits: list[int]) -> bool:
        """Return whether a sequence fits into the pool, with the expected growth of all sequences and a watermark."""
        num_new = self._blocks_for(sequence.num_tokens) - len(hits)
        # Cached blocks that nothing uses are counted as free, and sharing them takes them away.
        left = self.pool.num_free - num_new - sum(self.pool.is_free(block) for block in hits)
        if not self.running:
            return left >= 0
        is_certain = sequence.num_preemptions >= MAX_PREEMPTIONS
        growth = sum(self._growth_blocks(s, is_certain=is_certain) for s in (*self.running, sequence))
        return left >= growth + self._watermark

    def _growth_blocks(self, sequence: Sequence, *, is_certain: bool) -> int:
        """Return how many more blocks a sequence will need: in the worst case, or by the length of recent answers."""
        final = sequence.max_total_tokens
        if not is_certain:
            to_come = max(self._expected_output_tokens - sequence.num_output_tokens, self._block_tokens)
            final = min(final, sequence.num_tokens + int(to_come))
        return self._blocks_for(final) - self._blocks_for(sequence.num_tokens)

    def _admit(self, sequence: Sequence, hits: list[int]) -> None:
        for block in hits:
            self.pool.share(block)
        num_new = self._blocks_for(sequence.num_tokens) - len(hits)
        sequence.blocks = hits + self.pool.allocate(num_new)
        sequence.num_registered_blocks = len(hits)
        sequence.num_computed_tokens = len(hits) * self._block_tokens
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = sequence.num_computed_tokens
        sequence.slot = self._free_slots.pop()
        self.states.admit(sequence, len(hits))
        sequence.phase = SequencePhase.RUNNING
        self.running.append(sequence)
        if not sequence.shares_blocks:
            return
        self.stored.offer(sequence, 0, len(hits))
        # Others with the same prefix wait for these blocks instead of computing them too (`_cached_blocks`).
        num_full = sequence.num_tokens // self._block_tokens
        for block_hash in sequence.hash_blocks(num_full, self._block_tokens)[len(hits) :]:
            self._computing.setdefault(block_hash, sequence)

    def _advance(self, sequence: Sequence, num_computed_tokens: int) -> None:
        """Set the progress of a sequence and register the blocks that became full."""
        sequence.num_computed_tokens = num_computed_tokens
        count = num_computed_tokens // self._block_tokens
        if count <= sequence.num_registered_blocks or not sequence.shares_blocks:
            return
        hashes = sequence.hash_blocks(count, self._block_tokens)
        for index in range(sequence.num_registered_blocks, count):
            self.pool.register(sequence.blocks[index], hashes[index])
            if self._computing.get(hashes[index]) is sequence:
                del self._computing[hashes[index]]
        self.stored.offer(sequence, sequence.num_registered_blocks, count)
        sequence.num_registered_blocks = count

    def _release(self, sequence: Sequence) -> None:
        for block_hash in sequence.hashes[sequence.num_registered_blocks :]:
            if self._computing.get(block_hash) is sequence:
                del self._computing[block_hash]
        self.states.release(sequence)
        self.pool.free(sequence.blocks)
        if sequence.session is not None and sequence.shares_blocks:
            hashes = sequence.hashes[: sequence.num_registered_blocks]
            self._session_blocks.update(sequence.session, hashes)
            self.states.keep(sequence.session, hashes)
        sequence.blocks = []
        self._free_slots.append(sequence.slot)
        sequence.slot = -1

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_tokens)


def _chunk_order(sequence: Sequence) -> tuple[bool, bool, int]:
    """Return a key that sorts forced tokens first: they are few, and a stream must not wait for an older prompt."""
    return sequence.num_computed_tokens < sequence.num_prompt_tokens, *sequence.rank
