"""
The states of running sequences and their checkpoints, for models with state layers.

A KV cache can be shared up to any block; a state is that after one token, and cannot be cut back. So a prefix is reused
up to a *checkpoint*: the state after the last token of a block, registered under the hash of that block.

Every running sequence has a slot of its own, which each step updates in place. All other slots hold checkpoints, least
recently used first. A sequence that goes on from a checkpoint reads it in its first step and writes its own slot:
nothing is copied, and several sequences may read one checkpoint. A snapshot, which a step stores in passing, becomes
a checkpoint when the step has ended. Checkpoints take free slots only: progress never depends on them.

They are made at the ends of blocks where another sequence may go on:

- after the last user message of a chat: templates that drop the reasoning of earlier turns change what follows
- near the end of a prompt, before the tokens that open the answer: the next turn of the chat may open it otherwise
- where a sequence left a prefix that is in the KV cache: others will branch off there too
- where a sequence leaves the prompt of a running one, and waits for it
- at regular distances, so that a missing checkpoint costs a bounded number of tokens; evicted first
- at the last full block of an answer, for the next turn and for preemption; evicted first while the answer goes on
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.core.session import Session
from headrace.inference.engine.core.blocks import BlockPool, SessionBlocks
from headrace.inference.engine.core.sequence import Sequence
from headrace.inference.runner.step import RunnerLimits, StateStep

Int32 = npt.NDArray[np.int32]

_OPENING_TOKENS = 8
"""Tokens with which a chat template opens an answer, such as `<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n`."""
_MAX_SPACING_TOKENS = 2048


class Border(NamedTuple):
    """The end of a block where a sequence leaves a checkpoint."""

    number: int
    """Blocks before it."""
    block_hash: bytes
    is_cold: bool
    """True if the checkpoint is evicted before others."""
    is_answer: bool
    """True if the checkpoint replaces the one before it in the same answer."""


@dataclass(slots=True)
class LiveState:
    """The state of a running sequence."""

    slot: int
    read: int
    """The slot that the next step reads: -1 or a checkpoint in the first step, then `slot`."""
    num_stored_tokens: int
    """Tokens that the state has seen; behind `num_computed_tokens` by the accepted draft tokens of the last step."""
    borders: set[int] = field(default_factory=set)
    """Blocks after which others may go on from a checkpoint."""
    snapshots: list[tuple[int, Border]] = field(default_factory=list)
    """Slots that the planned step stores the state in as well."""
    answer_hash: bytes | None = None
    """The checkpoint in its answer."""


class NoStates:
    """The state pool of models without state layers: prefixes are reused as far as their KV blocks go."""

    def __init__(self) -> None:
        self.on_checkpoint: Callable[[BlockPool, int, bytes, int], None] = lambda *_: None
        """Called with the slots, the slot, the hash and the number of blocks of a checkpoint that is worth storing."""

    @property
    def num_live(self) -> int:
        """Slots of running sequences."""
        return 0

    @property
    def num_checkpoints(self) -> int:
        return 0

    def reusable(self, sequence: Sequence, hits: list[int]) -> list[int] | None:  # noqa: ARG002
        """Return the leading `hits` up to the last checkpoint; None if a running sequence will leave a later one."""
        return hits

    def lacks(self, block_hash: bytes) -> bool:  # noqa: ARG002
        """Return whether a sequence cannot go on after this block, although its KV is there."""
        return False

    @property
    def has_spare_slot(self) -> bool:
        """True if `take_slot` leaves a slot for the sequence that goes on from it."""
        return False

    def take_slot(self) -> int:
        """Allocate a slot for a state that is not computed but read."""
        raise NotImplementedError

    def give_slot(self, slot: int, block_hash: bytes | None) -> None:
        """Make the state in a slot of `take_slot` the checkpoint after a block; None: free the slot."""

    def request(self, leader: Sequence, follower: Sequence) -> None:
        """Let a running sequence leave a checkpoint where a waiting one will leave its prefix."""

    def has_room(self, sequence: Sequence, num_reused: int) -> bool:  # noqa: ARG002
        """Return whether a sequence that reuses so many blocks can be given a slot in this step."""
        return True

    def admit(self, sequence: Sequence, num_reused: int) -> None:
        """Give a sequence its slot; `has_room` was true."""

    def plan_step(self, sequences: Many[Sequence], certain: Many[int]) -> StateStep | None:  # noqa: ARG002
        """Return what the step does with the states of its sequences, which compute `certain` known tokens each."""
        return None

    def commit(self, sequences: Many[Sequence]) -> None:
        """Record that a step was executed, after the progress of its sequences is set."""

    def release(self, sequence: Sequence) -> None:
        """Free the slot of a sequence that stops running."""

    def keep(self, session: Session, hashes: Many[bytes]) -> None:
        """Evict the checkpoints of these blocks after those that no session keeps."""

    def forget(self, block_hash: bytes) -> None:
        """Drop the checkpoint at the end of a KV block that is evicted: it is of no use without KV."""


class StatePool(NoStates):
    """The slots of live states and checkpoints; `NoStates` describes the methods."""

    def __init__(self, limits: RunnerLimits, *, max_num_seqs: int) -> None:
        super().__init__()
        num_spare = limits.num_state_slots - max_num_seqs
        assert num_spare > 0, "A sequence needs its slot and the checkpoint that it goes on from."
        self.slots = BlockPool(limits.num_state_slots)
        self._session_slots = SessionBlocks(self.slots)
        self._block_tokens = limits.block_tokens
        # As dense as the slots can cover the whole KV cache: small states have a checkpoint every few blocks.
        self._spacing = min(-(-limits.num_blocks // num_spare), -(-_MAX_SPACING_TOKENS // limits.block_tokens))
        self._live: dict[Sequence, LiveState] = {}
        self._expected: dict[bytes, LiveState] = {}
        """Hashes of the borders that a running sequence has not reached yet."""

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def num_checkpoints(self) -> int:
        return self.slots.num_cached

    def reusable(self, sequence: Sequence, hits: list[int]) -> list[int] | None:
        for count in range(len(hits), 0, -1):
            block_hash = sequence.hashes[count - 1]
            if self.slots.find(block_hash) is not None:
                return hits[:count]
            if block_hash in self._expected:
                return None
        return []

    def lacks(self, block_hash: bytes) -> bool:
        return self.slots.find(block_hash) is None

    @property
    def has_spare_slot(self) -> bool:
        return self.slots.num_free > 1

    def take_slot(self) -> int:
        return self.slots.allocate(1)[0]

    def give_slot(self, slot: int, block_hash: bytes | None) -> None:
        if block_hash is not None:
            self.slots.register(slot, block_hash)
        self.slots.free([slot])

    def request(self, leader: Sequence, follower: Sequence) -> None:
        # Hashes are chained: those after the first difference differ too.
        most = min(len(leader.hashes), len(follower.hashes))
        border = bisect_left(range(most), True, key=lambda index: leader.hashes[index] != follower.hashes[index])
        self._expect(leader, border)

    def has_room(self, sequence: Sequence, num_reused: int) -> bool:
        source = self._checkpoint(sequence, num_reused)
        # The checkpoint counts as free until it is shared.
        return self.slots.num_free > (source >= 0 and self.slots.is_free(source))

    def admit(self, sequence: Sequence, num_reused: int) -> None:
        source = self._checkpoint(sequence, num_reused)
        if source >= 0:
            self.slots.share(source)
            self.on_checkpoint(self.slots, source, sequence.hashes[num_reused - 1], num_reused)
        (slot,) = self.slots.allocate(1)
        self._live[sequence] = LiveState(slot, source, num_reused * self._block_tokens)
        if sequence.shares_blocks:
            for num_tokens in (sequence.num_turn_tokens, sequence.num_prompt_tokens - _OPENING_TOKENS):
                self._expect(sequence, num_tokens // self._block_tokens)
            self._expect(sequence, sequence.num_found_blocks)

    def plan_step(self, sequences: Many[Sequence], certain: Many[int]) -> StateStep | None:
        states = [self._live[sequence] for sequence in sequences]
        replayed = [
            sequence.num_computed_tokens - state.num_stored_tokens
            for sequence, state in zip(sequences, states, strict=True)
        ]
        return StateStep(
            read=np.array([state.read for state in states], np.int32),
            write=np.array([state.slot for state in states], np.int32),
            replayed=np.array(replayed, np.int32),
            certain=np.array(certain, np.int32),
            snapshots=self._plan_snapshots(sequences, certain),
        )

    def commit(self, sequences: Many[Sequence]) -> None:
        for sequence in sequences:
            state = self._live[sequence]
            state.num_stored_tokens = sequence.num_computed_tokens
            self._leave_source(state)
            if state.snapshots:
                self._keep_snapshots(state)
            if state.borders:
                self._drop_borders(sequence, state, up_to=state.num_stored_tokens // self._block_tokens)

    def release(self, sequence: Sequence) -> None:
        state = self._live.pop(sequence)
        self._leave_source(state)
        self._drop_borders(sequence, state, up_to=len(sequence.hashes))
        self.slots.free([slot for slot, _ in state.snapshots])  # of a step that failed
        if state.answer_hash is not None:
            self.slots.touch(state.answer_hash)
            slot = self.slots.find(state.answer_hash)
            if slot is not None:
                num_blocks = state.num_stored_tokens // self._block_tokens
                self.on_checkpoint(self.slots, slot, state.answer_hash, num_blocks)
        self.slots.free([state.slot])

    def keep(self, session: Session, hashes: Many[bytes]) -> None:
        self._session_slots.update(
            session, [block_hash for block_hash in hashes if self.slots.find(block_hash) is not None]
        )

    def forget(self, block_hash: bytes) -> None:
        self.slots.forget(block_hash)

    def _checkpoint(self, sequence: Sequence, num_blocks: int) -> int:
        """Return the slot with the state after so many blocks; -1 for none, from which only 0 blocks need none."""
        if not num_blocks:
            return -1
        slot = self.slots.find(sequence.hashes[num_blocks - 1])
        assert slot is not None
        return slot

    def _expect(self, sequence: Sequence, border: int) -> None:
        """Plan a checkpoint after `border` blocks of a running sequence; keep that which it has passed already."""
        if border <= 0:
            return
        state, block_hash = self._live[sequence], sequence.hash_blocks(border, self._block_tokens)[-1]
        if border * self._block_tokens <= state.num_stored_tokens:
            self.slots.touch(block_hash)
        elif border not in state.borders:
            state.borders.add(border)
            self._expected.setdefault(block_hash, state)

    def _drop_borders(self, sequence: Sequence, state: LiveState, *, up_to: int) -> None:
        for border in [border for border in state.borders if border <= up_to]:
            state.borders.remove(border)
            block_hash = sequence.hashes[border - 1]
            if self._expected.get(block_hash) is state:
                del self._expected[block_hash]

    def _leave_source(self, state: LiveState) -> None:
        """Drop the reference to the checkpoint that the first step read."""
        if state.read not in (-1, state.slot):
            self.slots.free([state.read])
        state.read = state.slot

    def _plan_snapshots(self, sequences: Many[Sequence], certain: Many[int]) -> Int32:
        """Allocate slots for the snapshots of a step, as long as any is free: first for those that are kept longest."""
        wanted = [
            (border.is_cold, index, border)
            for index, (sequence, count) in enumerate(zip(sequences, certain, strict=True))
            for border in self._borders(sequence, count)
        ]
        taken: list[tuple[int, int, int]] = []
        for _, index, border in sorted(wanted):
            state = self._live[sequences[index]]
            if border.is_answer and state.answer_hash is not None:
                self.slots.forget(state.answer_hash)
            if not self.slots.num_free:
                break
            (slot,) = self.slots.allocate(1)
            state.snapshots.append((slot, border))
            taken.append((index, border.number * self._block_tokens - state.num_stored_tokens, slot))
        return np.array(sorted(taken), np.int32).reshape(-1, 3)

    def _borders(self, sequence: Sequence, count: int) -> Iterator[Border]:
        """Yield the borders that a sequence passes with `count` known tokens and where it leaves a checkpoint."""
        state = self._live[sequence]
        first = state.num_stored_tokens // self._block_tokens + 1
        last = (sequence.num_computed_tokens + count) // self._block_tokens
        if first > last or not sequence.shares_blocks:
            return
        hashes = sequence.hash_blocks(last, self._block_tokens)
        for number in range(first, last + 1):
            block_hash = hashes[number - 1]
            is_hot, is_spaced = number in state.borders, number % self._spacing == 0
            is_answer = number == last and number * self._block_tokens > sequence.num_prompt_tokens
            if not (is_hot or is_spaced or is_answer):
                continue
            if self.slots.find(block_hash) is None:
                yield Border(number, block_hash, not is_hot, is_answer and not (is_hot or is_spaced))
            elif is_hot:
                self.slots.touch(block_hash)

    def _keep_snapshots(self, state: LiveState) -> None:
        for slot, border in state.snapshots:
            self.slots.register(slot, border.block_hash)
            if border.is_answer and self.slots.find(border.block_hash) == slot:  # unless another sequence was faster
                state.answer_hash = border.block_hash
            if not border.is_cold:
                self.on_checkpoint(self.slots, slot, border.block_hash, border.number)
            self.slots.free([slot], is_cold=border.is_cold)
        state.snapshots.clear()


def make_state_pool(limits: RunnerLimits, *, max_num_seqs: int) -> NoStates:
    return StatePool(limits, max_num_seqs=max_num_seqs) if limits.num_state_slots else NoStates()
