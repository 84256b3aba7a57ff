"""
One sequence: a prompt with its answer so far, and how much of it is in the KV cache.

Pure state: the scheduler writes progress and blocks, the engine tokens.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from headrace.core.generation import SamplingParams
from headrace.core.session import Session
from headrace.inference.engine.core.blocks import chain_hash
from headrace.inference.engine.core.pooling import SequencePool
from headrace.inference.engine.spec_decode.token_match import TokenMatcher

Int32 = npt.NDArray[np.int32]


class SequencePhase(Enum):
    """The scheduling state of a sequence."""

    WAITING = auto()
    RUNNING = auto()
    DONE = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """
    One prompt plus its generated tokens.

    `tokens[:num_tokens]` are known; the KV of `tokens[:num_computed_tokens]` is in the cache. A sequence decodes when
    its prompt is computed and exactly one known token is not; otherwise it prefills.
    Entries from `num_tokens` on are scratch: draft tokens of the next step.
    """

    arrival_id: int
    """Arrival number: smaller is older."""
    is_background: bool = False
    """True if all other sequences go first."""
    arrived_s: float = 0.0
    """When it arrived, on the engine's clock."""
    tokens: Int32
    """(max_total_tokens,)"""
    num_tokens: int
    num_prompt_tokens: int
    max_total_tokens: int
    """The sequence ends when it has this many tokens."""
    params: SamplingParams
    root_hash: bytes
    """Parent of the first block's hash, derived from the request's salt."""
    seed: int = 0
    adapter_slot: int = -1
    """The slot of its adapter in the runner, or -1."""
    second_start: int = -1
    """Position from which tokens are of type 1: the second text of a pair (BERT); -1: all are of type 0."""
    num_turn_tokens: int = 0
    """Prompt tokens after which the prompt of the next turn may differ, in a chat; 0: unknown."""
    scores_prompt: bool = False
    """True if the logprobs of the prompt are computed."""
    can_draft: bool = True
    """True if a row's draw depends only on the tokens before it, so that draft tokens can be verified."""
    pool: SequencePool | None = None
    """Collects the hidden states of the prompt; such a sequence generates nothing."""
    shares_blocks: bool = True
    """True if its KV blocks come from and go to the prefix cache."""
    session: Session | None = None
    """The session that keeps its blocks when it ends."""

    phase: SequencePhase = SequencePhase.WAITING
    slot: int = -1
    """Row in the persistent arrays of `StepBuilder` while running, else -1."""
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at the first admission."""
    num_found_blocks: int = 0
    """Leading blocks whose KV was in the cache at the last look; a model with states may reuse fewer."""
    num_scored_tokens: int = 0
    """Rows `[0, num_scored_tokens)` of the prompt are scored (row `i` scores token `i + 1`)."""
    num_preemptions: int = 0
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    """Hashes of leading full blocks, computed on demand."""
    num_registered_blocks: int = 0
    """Leading blocks registered with the pool by hash."""
    _matcher: TokenMatcher | None = field(default=None, init=False, repr=False)

    @property
    def rank(self) -> tuple[bool, int]:
        """The place in the order in which sequences are admitted, and in reverse preempted."""
        return self.is_background, self.arrival_id

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def output(self) -> Int32:
        return self.tokens[self.num_prompt_tokens : self.num_tokens]

    @property
    def is_decoding(self) -> bool:
        """True if the next step computes just the newest generated token."""
        return self.num_computed_tokens == self.num_tokens - 1 and self.num_tokens > self.num_prompt_tokens

    @property
    def matcher(self) -> TokenMatcher:
        """The matcher that drafts for this sequence, created on first use."""
        if self._matcher is None:
            self._matcher = TokenMatcher(self.max_total_tokens)
        return self._matcher

    def append(self, token_id: int) -> None:
        self.tokens[self.num_tokens] = token_id
        self.num_tokens += 1

    def hash_blocks(self, count: int, block_tokens: int) -> list[bytes]:
        """Return the hashes of the first `count` blocks, which must be full of known tokens."""
        hashes = self.hashes
        while len(hashes) < count:
            start = len(hashes) * block_tokens
            parent = hashes[-1] if hashes else self.root_hash
            hashes.append(chain_hash(parent, self.tokens[start : start + block_tokens].tobytes()))
        return hashes[:count]
