"""
A fake runner of a model with state layers.

The state of a slot is a hash of all tokens that it has seen. After each step it is compared with the tokens in the KV
cache, so a wrong slot, replay or snapshot fails the step at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from headrace.inference.runner.step import Int32, StepInput
from headrace.testing.fake_runner import FakeRunner

_MULTIPLIER = 6364136223846793005
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Slot:
    state: int = 0
    drafts: tuple[int, ...] = ()
    """Inputs of the draft tokens after the state."""


def scan(state: int, tokens: Iterable[int]) -> int:
    for token in tokens:
        state = (state * _MULTIPLIER + token + 1) & _MASK
    return state


@dataclass(frozen=True)
class Uses:
    """Counts of states that were handed over, for tests that must not pass because it never happened."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("checkpoints", "snapshots", "replayed"), 0))

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counts[name] += count


class FakeStateRunner(FakeRunner):
    """`FakeRunner` with states, which it checks."""

    uses: Uses

    def _write(self, step: StepInput) -> None:
        super()._write(step)
        if not hasattr(self, "uses"):
            self.uses, self._states = Uses(), [None] * self.limits.num_state_slots
        states = step.states
        assert states is not None
        before = list(self._states)
        for index, (read, write) in enumerate(zip(states.read.tolist(), states.write.tolist(), strict=True)):
            self._states[write] = self._slot_after(step, index, Slot() if read < 0 else before[read])
        self.uses.add(
            checkpoints=int(((states.read >= 0) & (states.read != states.write)).sum()),
            snapshots=len(states.snapshots),
            replayed=int(states.replayed.sum()),
        )

    def _slot_after(self, step: StepInput, index: int, slot: Slot | None) -> Slot:
        """Go on from a slot, store its snapshots and return what the sequence's own slot holds after the step."""
        assert slot is not None, "The step reads a slot that was never written."
        states = step.states
        assert states is not None
        replayed, certain = int(states.replayed[index]), int(states.certain[index])
        assert replayed <= len(slot.drafts), "More draft tokens are replayed than the slot has inputs of."
        context = int(step.context_lens[index])
        cached = self._tokens(step, index, context + int(step.query_starts[index + 1] - step.query_starts[index]))
        known = [*slot.drafts[:replayed], *cached[context : context + certain].tolist()]
        for sequence, count, target in states.snapshots.tolist():
            if sequence == index:
                self._states[target] = Slot(scan(slot.state, known[:count]))
        state = scan(slot.state, known)
        assert state == scan(0, cached[: context + certain].tolist()), "The state is not that of the tokens before."
        return Slot(state, tuple(cached[context + certain :].tolist()))

    def _tokens(self, step: StepInput, index: int, count: int) -> Int32:
        return np.asarray(self._cache[self._slots(step, index, count)], np.int32)
