"""
A runner without a network, for tests of every layer above it.

Its KV cache stores token ids. The logits of a row are a hash of all tokens of its sequence, read back through the
block table. As with a real model, the output depends on the whole prefix and nothing else, and a block that is lost,
shared by mistake or overwritten changes the text or raises an error.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from headrace.core.errors import EngineFailed
from headrace.models.spec import ModelSpec
from headrace.runner.checks import check_step, token_slots
from headrace.runner.sampling import sample_rows
from headrace.runner.step import Float32, Int32, RunnerInfo, RunnerLimits, StepInput, StepOutput

Script = Callable[[tuple[int, ...]], int | None]
"""Maps all tokens of a sequence so far to the token that must come next, or None to let the hash decide."""

FAKE_SPEC = ModelSpec(
    family="fake",
    num_layers=1,
    hidden_size=8,
    intermediate_size=8,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    vocab_size=256,
    max_positions=4096,
    norm_eps=1e-5,
)
FAKE_LIMITS = RunnerLimits(
    num_blocks=64,
    block_tokens=16,
    max_step_tokens=512,
    max_step_sequences=64,
    max_step_rows=512,
    max_context_tokens=1024,
)
LOGIT_RANGE = 8.0
"""Hashed logits lie between 0 and this."""
SCRIPTED_LOGIT = 1000.0


class FakeRunner:
    """
    A `Runner` whose tokens are a hash of the prefix, or are dictated by a script.

    Args:
        spec: only `vocab_size` matters.
        limits: enforced as in a real runner.
        script: forces tokens, see `follow`. Masks, biases and penalties still apply to a forced token.
        bias: added to the logits of these tokens in every row, e.g. `{eos: -inf}` for answers that never end.
        fail_on_steps: these steps (counted from 0) raise `EngineFailed`.
        before_step: called with each step before it runs, to record, block or delay it.
    """

    def __init__(
        self,
        spec: ModelSpec = FAKE_SPEC,
        limits: RunnerLimits = FAKE_LIMITS,
        *,
        script: Script | None = None,
        bias: Mapping[int, float] | None = None,
        fail_on_steps: Collection[int] = (),
        before_step: Callable[[StepInput], None] | None = None,
    ) -> None:
        self.spec = spec
        self.limits = limits
        self.info = RunnerInfo(
            dtype="fake", kv_dtype="fake", device="fake", weights_bytes=0, kv_cache_bytes=0, workspace_bytes=0
        )
        self.num_steps = 0
        """Steps that were requested, failed ones included."""
        self.is_closed = False
        self._cache: Int32 = np.full(limits.num_blocks * limits.block_tokens, -1, np.int32)
        self._script = script
        self._bias = dict(bias or {})
        self._fail_on_steps = frozenset(fail_on_steps)
        self._before_step = before_step

    def execute(self, step: StepInput) -> StepOutput:
        """Run one step."""
        return sample_rows(self.logits(step), step)

    def logits(self, step: StepInput) -> Float32:
        """Run one step up to its logits (R, V)."""
        number, self.num_steps = self.num_steps, self.num_steps + 1
        if self._before_step is not None:
            self._before_step(step)
        if number in self._fail_on_steps:
            raise EngineFailed(f"Step {number} was told to fail.")
        check_step(step, self.spec, self.limits)
        contexts = self._write(step)
        owners = np.searchsorted(step.query_starts, step.rows, side="right") - 1
        rows = [self._row(contexts[s], int(t - step.query_starts[s])) for s, t in zip(owners, step.rows, strict=True)]
        return np.stack(rows) if rows else np.empty((0, self.spec.vocab_size), np.float32)

    def close(self) -> None:
        """Record that the runner was closed."""
        self.is_closed = True

    def _write(self, step: StepInput) -> list[tuple[Int32, int]]:
        """Store the tokens; return for each sequence its tokens as cached and the number that were cached before."""
        slots = []
        for sequence, context in enumerate(step.context_lens):
            start, stop = step.query_starts[sequence : sequence + 2]
            slots.append(token_slots(step.block_tables[sequence], context + stop - start, self.limits.block_tokens))
            self._cache[slots[-1][context:]] = step.token_ids[start:stop]
        return [(self._cache[own], int(context)) for own, context in zip(slots, step.context_lens, strict=True)]

    def _row(self, context: tuple[Int32, int], offset: int) -> Float32:
        """Return the logits after the token at `offset` of the chunk."""
        tokens, num_old = context
        prefix = tokens[: num_old + offset + 1]
        if (prefix < 0).any():
            raise EngineFailed(f"Position {int(np.argmax(prefix < 0))} of a context was never written.")
        logits = hashed_logits(prefix, self.spec.vocab_size)
        forced = self._script(tuple(prefix.tolist())) if self._script is not None else None
        if forced is not None:
            logits[forced] = SCRIPTED_LOGIT
        for token, value in self._bias.items():
            logits[token] += value
        return logits


def follow(answers: Mapping[tuple[int, ...], Sequence[int]]) -> Script:
    """
    Return a script of fixed answers.

    Args:
        answers: maps the end of a prompt (`()` matches any prompt) to the tokens that follow it.
            If several match, the longest match wins.
    """

    def next_token(prefix: tuple[int, ...]) -> int | None:
        best, chosen = -1, None
        for ending, answer in answers.items():
            for done in range(len(answer) + 1):
                known = (*ending, *answer[:done])
                if len(known) > best and prefix[len(prefix) - len(known) :] == known:
                    best, chosen = len(known), answer[done] if done < len(answer) else None
        return chosen

    return next_token


def hashed_logits(prefix: Int32, vocab_size: int) -> Float32:
    """Return logits (V,) that are a function of the tokens and their order."""
    positions = np.arange(1, len(prefix) + 1, dtype=np.uint64)
    state = _mix(_mix(prefix.astype(np.uint64)) + positions * np.uint64(0x9E3779B97F4A7C15)).sum(dtype=np.uint64)
    bits = _mix(state + np.arange(vocab_size, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95))
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(LOGIT_RANGE / 2**24)


def _mix(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply SplitMix64's finaliser. Source: Steele et al. 2014, "Fast splittable pseudorandom number generators"."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
