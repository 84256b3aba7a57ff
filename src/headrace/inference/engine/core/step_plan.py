"""The plan of one step, which the scheduler makes and the step builder carries out."""

from dataclasses import dataclass, field

from headrace.inference.engine.core.sequence import Sequence
from headrace.inference.engine.core.step_time import attended_tokens
from headrace.inference.runner.step import StateStep


@dataclass(slots=True)
class StepPlan:
    """
    One step: each sequence computes `counts[i]` tokens.

    The first `num_decodes` sequences decode: one known token each, followed by their draft tokens.
    """

    sequences: list[Sequence] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    num_decodes: int = 0
    num_drafted: int = 0
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    num_tokens: int = 0
    attended: int = 0
    """Tokens attended to, summed over the tokens of the step."""
    decode_attended: int = 0
    """The part of `attended` that belongs to decoding sequences."""
    limit_s: float | None = None
    """How long the step may take with chunks of prompts in it; None: nothing waits for it, or it has no chunks."""
    states: StateStep | None = None

    @property
    def known_counts(self) -> list[int]:
        """The tokens of each sequence that are no draft tokens."""
        return [1] * self.num_decodes + self.counts[self.num_decodes :]

    def add(self, sequence: Sequence, count: int) -> None:
        self.sequences.append(sequence)
        self.counts.append(count)
        self.num_tokens += count
        self.attended += attended_tokens(sequence.num_computed_tokens, count)

    def add_draft(self, index: int, count: int) -> None:
        """Plan `count` draft tokens of a decoding sequence in addition."""
        self.counts[index] += count
        self.num_tokens += count
        self.num_drafted += count
        attended = attended_tokens(self.sequences[index].num_tokens, count)
        self.attended += attended
        self.decode_attended += attended
