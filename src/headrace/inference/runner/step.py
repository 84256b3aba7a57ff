"""
The interface between the engine and a runner: one step.

A step is one forward pass over a mixed batch of prompt chunks and decode tokens. Letters in shapes:
`T` tokens in the step, `S` sequences, `R` logit rows, `P` hidden rows, `H` hidden size, `N` blocks in a table,
`K` alternatives, `C` snapshots of states.
Plain numpy arrays, so that a native runner reads them without copying. No torch, no clock, no I/O here.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.inference.models.adapter import Adapter

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]

SAMPLING_DTYPE = np.dtype(
    [
        ("seed", "<u8"),
        ("position", "<u8"),
        ("temperature", "<f4"),
        ("top_p", "<f4"),
        ("min_p", "<f4"),
        ("typical_p", "<f4"),
        ("repetition_penalty", "<f4"),
        ("presence_penalty", "<f4"),
        ("frequency_penalty", "<f4"),
        ("top_k", "<i4"),
        ("num_top", "<i4"),
        ("target", "<i4"),
    ]
)
"""
Sampling parameters of one logit row (56 bytes, the layout of the C++ struct `SamplingRow`).

`seed`, `position`: the random number is a function of these two only (counter based);
`position` is the index of the token being drawn in its sequence (prompt included).
`temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0, `typical_p` 1, penalties 1/0/0 are off.
`num_top`: -1 no logprobs, 0 the logprob of the chosen token, k those of the k best too.
`target`: -1 draw a token; >= 0 report this token instead of drawing one (prompt logprobs).
"""


@dataclass(frozen=True, slots=True)
class History:
    """The tokens that the penalties of logit row `row` count; the prompt is `tokens[:num_prompt_tokens]`."""

    row: int
    tokens: Int32
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Bias:
    """Add `values` to the logits `ids` of logit row `row` (-inf forbids)."""

    row: int
    ids: Int32
    values: Float32


@dataclass(frozen=True, slots=True)
class Mask:
    """The tokens allowed in logit row `row`: bit `i % 32` of word `i // 32`; ceil(vocab / 32) words."""

    row: int
    words: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStep:
    """
    The moves of the states of the sequences of a step, for models with state layers (`mixers.py`).

    A state slot holds the state of one sequence after one of its tokens, in all layers, and the inputs of the draft
    tokens that follow it. The state goes on through the draft tokens of a sequence without being stored; the next step
    first replays the accepted ones from their inputs. Every token is computed by the same operations in the same
    order, so the state does not depend on chunks, drafts or the slots that it passed through.
    """

    read: Int32
    """(S,) slot whose state the sequence continues; -1: a new sequence, which starts with zeros."""
    write: Int32
    """
    (S,) slot that receives the state after the certain tokens and the inputs of the draft tokens: `read` itself, or
    another one if the state in `read` is to stay. A slot that the step writes is read only by the sequence that
    writes it in place.
    """
    replayed: Int32
    """(S,) accepted draft tokens of the previous step, whose inputs are in `read`; they are not tokens of this step."""
    certain: Int32
    """(S,) tokens of the step that are known, at least one; those after them are draft tokens."""
    snapshots: Int32 = field(default_factory=lambda: np.empty((0, 3), np.int32))
    """
    (C, 3) copies of the state to keep, in ascending order: index of the sequence, number of tokens after which the
    state is stored, and slot. Tokens are counted from the first replayed one; none of them is a draft token.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """
    A batch of sequences; the tokens of a sequence are contiguous.

    KV of every token is written before attention runs, so a chunk may attend to itself causally.
    """

    token_ids: Int32
    """(T,)"""
    query_starts: Int32
    """(S + 1,) sequence `s` owns tokens `query_starts[s]:query_starts[s + 1]`."""
    context_lens: Int32
    """(S,) tokens of the sequence that are already in the KV cache = position of its first token in the step."""
    block_tables: Int32
    """(S, N) block ids, enough for context + chunk; the rest of a row is ignored. C-contiguous."""
    rows: Int32
    """(R,) ascending indices of the tokens that need logits; the others never reach the LM head."""
    sampling: npt.NDArray[np.void]
    """(R,) of `SAMPLING_DTYPE`."""
    hidden_rows: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    """(P,) ascending indices of the tokens whose hidden states are returned, for pooling; none of them in `rows`."""
    adapters: Int32 | None = None
    """(S,) slot of each sequence's adapter, -1 for none; None: no sequence has one."""
    token_types: Int32 | None = None
    """(T,) type of each token (BERT: 1 for the second text of a pair); None: all are 0."""
    states: StateStep | None = None
    """None for models without state layers."""
    histories: tuple[History, ...] = ()
    """At most one for each row; the same holds for biases and masks."""
    biases: tuple[Bias, ...] = ()
    masks: tuple[Mask, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The sampled token and logprobs of each logit row, and the hidden states of each hidden row."""

    token_ids: Int32
    """(R,) the token drawn, or `target`. -1: a logit is NaN or +inf, or all tokens are forbidden."""
    logprobs: Float32
    """(R,) logprob of that token from the raw logits; NaN where `num_top` is -1."""
    ranks: Int32
    """(R,) place of that token by the raw logits, 1 for the best; 0 where `num_top` is -1."""
    top_ids: Int32
    """(R, K) best tokens, best first, -1 after `num_top`; K is the largest `num_top` of the step (at least 0)."""
    top_logprobs: Float32
    """(R, K)"""
    hidden: Float32 = field(default_factory=lambda: np.empty((0, 0), np.float32))
    """(P, H) the output of the last layer after the final norm."""
    num_threads: int = 1
    """CPU threads that ran the step: fewer than the runner's while other processes keep the cores busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """The largest step that a runner accepts; its workspaces are sized by this when it is loaded."""

    num_blocks: int
    block_tokens: int
    max_step_tokens: int
    max_step_sequences: int
    max_step_rows: int
    max_context_tokens: int
    max_adapters: int = 0
    """Slots for adapters."""
    max_adapter_rank: int = 0
    num_state_slots: int = 0
    """Slots for states; 0 for models without state layers."""
    max_draft_tokens: int = 0
    """Draft tokens of a sequence in a step, whose inputs a state slot keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo:
    """Formats, device and memory of a loaded runner, for logs, `/info` and `headrace doctor`."""

    dtype: str
    kv_dtype: str
    device: str
    weights_bytes: int
    kv_cache_bytes: int
    workspace_bytes: int
    adapter_bytes: int = 0
    """Memory of the slots for adapters; it is used as they are filled."""
    state_bytes: int = 0
    """Memory of the slots for states."""
    is_batch_invariant: bool = True
    """False if the other rows of a step may change the rounding of a row, and so a sampled token."""
    facts: dict[str, str] = field(default_factory=dict)


class Runner(Protocol):
    """
    Executes steps of one model. Not thread safe: only one thread may call it.

    If `info.is_batch_invariant`, a row gets the same answer whatever else is in the batch.
    """

    vocab_size: int
    """Logits of a row."""
    is_causal: bool
    """False if a token attends to later ones: a prompt must then be computed in one step."""
    limits: RunnerLimits
    info: RunnerInfo

    @property
    def is_healthy(self) -> bool:
        """False once no step can succeed any more. May be read on any thread, and does not block."""
        ...

    def execute(self, step: StepInput) -> StepOutput:
        """Run one step, releasing the GIL while it computes. Raises `EngineFailed` if the step is invalid."""
        ...

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        """
        Fill a slot, and replace what it held before.

        May be called on any thread while steps run, as long as none of them uses the slot.
        """
        ...

    def close(self) -> None:
        """Free weights and KV cache. Idempotent."""
        ...
