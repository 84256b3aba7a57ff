"""
Random walks of sequences with states through a runner, for tests of state layers.

A walk cuts sequences into random chunks, adds right and wrong draft tokens, moves states between slots, keeps
checkpoints and goes back to them, and gives the logits of known tokens on the way.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.inference.runner.step import Float32, RunnerLimits, StateStep, StepInput
from tests.inference.runner.steps import Piece, make_step, with_random_rows

CHUNKS = (1, 1, 2, 3, 7, 17, 32, 70)


def state_step(
    *,
    read: Sequence[int],
    write: Sequence[int],
    certain: Sequence[int],
    replayed: Sequence[int] = (),
    snapshots: Iterable[tuple[int, int, int]] = (),
) -> StateStep:
    by_sequence = (np.array(values, np.int32) for values in (read, write, replayed or [0] * len(read), certain))
    fields = dict(zip(("read", "write", "replayed", "certain"), by_sequence, strict=True))
    return StateStep(**fields, snapshots=np.array(list(snapshots), np.int32).reshape(-1, 3))


def new_sequences(*lengths: int) -> StateStep:
    """Return the states of a step with whole prompts, in slots 0, 1, ..."""
    return state_step(read=[-1] * len(lengths), write=range(len(lengths)), certain=lengths)


INVALID_STATES = {
    "has no states": None,
    "a slot that does not exist": state_step(read=[0, -1], write=[9, 1], certain=[2, 2]),
    "a state for a new sequence": state_step(read=[0, 3], write=[0, 1], certain=[2, 2]),
    "no state for another": state_step(read=[-1, -1], write=[0, 1], certain=[2, 2]),
    "no certain token": state_step(read=[0, -1], write=[0, 1], certain=[0, 2]),
    "more certain tokens than there are": state_step(read=[0, -1], write=[0, 1], certain=[2, 3]),
    "drafts that were not made": state_step(read=[0, -1], write=[0, 1], certain=[2, 2], replayed=[1, 0]),
    "a slot written twice": state_step(read=[0, -1], write=[1, 1], certain=[2, 2]),
    "a slot read and written": state_step(read=[0, -1], write=[2, 0], certain=[2, 2]),
    "a snapshot into a slot that is read": state_step(
        read=[0, -1], write=[1, 2], certain=[2, 2], snapshots=[(1, 1, 0)]
    ),
    "a snapshot after a draft": state_step(read=[0, -1], write=[0, 1], certain=[1, 2], snapshots=[(0, 2, 3)]),
    "snapshots out of order": state_step(read=[0, -1], write=[0, 1], certain=[2, 2], snapshots=[(1, 1, 3), (0, 1, 4)]),
}
"""Invalid states of a step that continues a sequence of three tokens in slot 0 by two, and begins another with two."""


@dataclass
class _Sequence:
    tokens: Sequence[int]
    blocks: Sequence[int]
    slot: int = -1
    stored: int = 0
    """Tokens in the state in `slot`."""
    accepted: int = 0
    """Draft tokens in `slot` that were right."""
    checkpoints: dict[int, int] = field(default_factory=dict)
    """Slots that keep a state, and its number of tokens."""

    @property
    def done(self) -> int:
        return self.stored + self.accepted

    @property
    def is_done(self) -> bool:
        return self.done >= len(self.tokens)


@dataclass(frozen=True)
class _Turn:
    """The part of one sequence in a step."""

    piece: Piece
    states: tuple[int, int, int, int]
    """Slots to read and write, replayed and certain tokens."""
    snapshot: tuple[int, int] | None
    """Tokens after which the state is kept, and the slot."""
    num_right: int
    """Tokens of the piece that are not wrong drafts."""


class Walk:
    """The random walk of some sequences, each with the blocks of one table."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        tables: Sequence[Sequence[int]],
        rng: np.random.Generator,
        limits: RunnerLimits,
        chunks: Sequence[int] = CHUNKS,
        *,
        some_rows: bool = False,
    ) -> None:
        """Plan a walk; with `some_rows` its steps request the logits of random tokens only."""
        self._sequences = [_Sequence(*pair) for pair in zip(prompts, tables, strict=True)]
        self._rng = rng
        self._limits = limits
        self._chunks = chunks
        self._some_rows = some_rows
        self._backs = 0
        self._free = list(rng.permutation(limits.num_state_slots))

    def run(self, logits: Callable[[StepInput], Float32], max_tokens: int) -> Iterator[tuple[int, int, Float32]]:
        """Yield number, position and logits of tokens until all sequences are computed, some of them several times."""
        self._backs = 2 * len(self._sequences)
        while waiting := [index for index, sequence in enumerate(self._sequences) if self._can_run(sequence)]:
            turns, room = {}, max_tokens
            for index in self._rng.permutation(waiting):
                sequence = self._sequences[index]
                has_room = room > self._limits.max_draft_tokens and self._can_run(sequence)
                if has_room and self._rng.random() < 0.7:
                    if self._can_go_back(sequence) and (sequence.is_done or self._rng.random() < 0.3):
                        self._go_back(sequence)
                    turns[int(index)] = turn = self._turn(sequence, room)
                    room -= len(turn.piece[0])
            if turns:
                yield from self._execute(turns, logits)

    @property
    def _num_spare(self) -> int:
        """Number of free slots that no new sequence needs."""
        return len(self._free) - sum(sequence.slot < 0 for sequence in self._sequences)

    def _can_run(self, sequence: _Sequence) -> bool:
        return not sequence.is_done or self._can_go_back(sequence)

    def _can_go_back(self, sequence: _Sequence) -> bool:
        return self._backs > 0 and any(stored < len(sequence.tokens) for stored in sequence.checkpoints.values())

    def _go_back(self, sequence: _Sequence) -> None:
        """Continue at a checkpoint, and drop what was computed after it."""
        self._backs -= 1
        early = [slot for slot, stored in sequence.checkpoints.items() if stored < len(sequence.tokens)]
        slot = int(self._rng.choice(early))
        if sequence.slot >= 0:
            self._free.append(sequence.slot)
        sequence.slot, sequence.stored, sequence.accepted = slot, sequence.checkpoints.pop(slot), 0
        for later in [slot for slot, stored in sequence.checkpoints.items() if stored > sequence.stored]:
            del sequence.checkpoints[later]  # wrong drafts may take the place of the keys before it
            self._free.append(later)

    def _turn(self, sequence: _Sequence, room: int) -> _Turn:
        start, rng = sequence.done, self._rng
        most_drafts = self._limits.max_draft_tokens
        certain = min(int(rng.choice(self._chunks)), len(sequence.tokens) - start, room - most_drafts)
        right = int(rng.integers(0, min(most_drafts, len(sequence.tokens) - start - certain) + 1))
        wrong = int(rng.integers(0, most_drafts - right + 1)) if rng.random() < 0.5 else 0
        tokens = [*sequence.tokens[start : start + certain + right], *([sequence.tokens[0]] * wrong)]
        write = sequence.slot
        if write < 0 or (self._num_spare > 0 and rng.random() < 0.3):
            write = int(self._free.pop())
        snapshot = None
        if self._num_spare > (sequence.slot < 0) and rng.random() < 0.3:
            snapshot = int(rng.integers(1, sequence.accepted + certain + 1)), int(self._free.pop())
        states = sequence.slot, write, sequence.accepted, certain
        return _Turn((tokens, start, sequence.blocks), states, snapshot, certain + right)

    def _execute(
        self, turns: dict[int, _Turn], logits: Callable[[StepInput], Float32]
    ) -> Iterator[tuple[int, int, Float32]]:
        parts = list(turns.values())
        kept = [(number, *part.snapshot) for number, part in enumerate(parts) if part.snapshot]
        read, write, replayed, certain = zip(*(part.states for part in parts), strict=True)
        states = state_step(read=read, write=write, replayed=replayed, certain=certain, snapshots=kept)
        step = make_step(*(part.piece for part in parts), all_rows=True, states=states)
        step = with_random_rows(step, self._rng) if self._some_rows else step
        rows = dict(zip(step.rows.tolist(), logits(step), strict=True))
        for (index, part), first in zip(turns.items(), step.query_starts.tolist(), strict=False):
            for offset in range(part.num_right):
                if first + offset in rows:
                    yield index, part.piece[1] + offset, rows[first + offset]
            self._advance(self._sequences[index], part)

    def _advance(self, sequence: _Sequence, turn: _Turn) -> None:
        read, write, replayed, certain = turn.states
        if turn.snapshot:
            tokens, slot = turn.snapshot
            sequence.checkpoints[slot] = sequence.stored + tokens
        if read not in (-1, write):
            sequence.checkpoints[read] = sequence.stored
        for slot in list(sequence.checkpoints)[:-2]:
            del sequence.checkpoints[slot]
            self._free.append(slot)
        sequence.slot = write
        sequence.stored += replayed + certain
        sequence.accepted = turn.num_right - certain
