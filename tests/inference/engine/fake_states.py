"""
A fake runner of a model with state layers.

The state of a slot is a hash of all tokens that it has seen. After each step it is compared with the tokens in the KV
cache, so a wrong slot, replay or snapshot fails the step at once.
"""

from dataclasses import dataclass, field

import numpy as np

from headrace.inference.runner.step import Int32, StepInput
from headrace.testing.fake_runner import FakeRunner

_MULTIPLIER = 6364136223846793005
_MASK = 2**64 - 1
_POWERS = np.cumprod(np.concatenate([[1], np.full(8192, _MULTIPLIER)]).astype(np.uint64), dtype=np.uint64)


@dataclass(frozen=True)
class Slot:
    state: int = 0
    drafts: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    """Inputs of the draft tokens after the state."""


def scan(state: int, tokens: Int32) -> int:
    """Return `state * M + token + 1` for one token after the other, modulo 2**64."""
    terms = (tokens.astype(np.uint64) + np.uint64(1)) * _POWERS[len(tokens) - 1 :: -1][: len(tokens)]
    return (state * int(_POWERS[len(tokens)]) + int(terms.sum(dtype=np.uint64))) & _MASK


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
        known = np.concatenate([slot.drafts[:replayed], cached[context : context + certain]])
        for sequence, count, target in states.snapshots.tolist():
            if sequence == index:
                self._states[target] = Slot(scan(slot.state, known[:count]))
        state = scan(slot.state, known)
        assert state == scan(0, cached[: context + certain]), "The state is not that of the tokens before."
        return Slot(state, cached[context + certain :])

    def _tokens(self, step: StepInput, index: int, count: int) -> Int32:
        return np.asarray(self._cache[self._slots(step, index, count)], np.int32)
