"""
A runner without a network, for tests of every layer above it.

Its KV cache stores token ids. The logits of a row are a hash of all tokens of its sequence, read back through the
block table. As with a real model, the output depends on the whole prefix and nothing else, and a block that is lost,
shared by mistake or overwritten changes the text or raises an error.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.core.errors import EngineFailed
from headrace.inference.models.adapter import Adapter
from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.checks import check_step, token_slots
from headrace.inference.runner.sampling import sample_rows
from headrace.inference.runner.step import Float32, Int32, RunnerInfo, RunnerLimits, StepInput, StepOutput

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
    max_adapters=2,
    max_adapter_rank=16,
)
LOGIT_RANGE = 8.0
"""Hashed logits lie between 0 and this."""
SCRIPTED_LOGIT = 1000.0
_MAX_OFFSETS = 997


class FakeRunner:
    """
    A `Runner` whose tokens are a hash of the prefix, or are dictated by a script.

    Args:
        spec: only `vocab_size` and `hidden_size` matter.
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
        self.vocab_size, self.is_causal = spec.vocab_size, spec.is_causal
        self.limits = limits
        self.info = RunnerInfo(
            dtype="fake", kv_dtype="fake", device="fake", weights_bytes=0, kv_cache_bytes=0, workspace_bytes=0
        )
        self.num_steps = 0
        """Steps that were requested, failed ones included."""
        self.is_closed = False
        self.is_healthy = True
        self._adapters: dict[int, Adapter] = {}
        self._cache: Int32 = np.full(limits.num_blocks * limits.block_tokens, -1, np.int32)
        self._script = script
        self._bias = dict(bias or {})
        self._fail_on_steps = frozenset(fail_on_steps)
        self._before_step = before_step

    def execute(self, step: StepInput) -> StepOutput:
        """Run one step."""
        output = sample_rows(self.logits(step), step)
        return replace(output, hidden=self._outputs(step, step.hidden_rows, self.spec.hidden_size))

    def logits(self, step: StepInput) -> Float32:
        """Run one step up to its logits (R, V)."""
        number, self.num_steps = self.num_steps, self.num_steps + 1
        if self._before_step is not None:
            self._before_step(step)
        if number in self._fail_on_steps:
            raise EngineFailed(f"Step {number} was told to fail.")
        check_step(step, self.limits, vocab_size=self.vocab_size, token_types=self.spec.token_types)
        self._write(step)
        logits = self._outputs(step, step.rows, self.vocab_size)
        for row, prefix in zip(logits, self._prefixes(step, step.rows), strict=True):
            self._adjust(row, prefix)
        return logits

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        """Fill a slot: its rows get the logits of another model."""
        self._adapters[slot] = adapter

    def cache_rows(self) -> dict[Literal["kv"], npt.NDArray[np.uint8]]:
        """Return the memory of the KV cache, a row for each block."""
        return {"kv": self._cache.reshape(self.limits.num_blocks, -1).view(np.uint8)}

    def close(self) -> None:
        """Record that the runner was closed."""
        self.is_closed = True

    def _write(self, step: StepInput) -> None:
        """Store the tokens of a step."""
        for sequence, context in enumerate(step.context_lens):
            start, stop = step.query_starts[sequence : sequence + 2]
            self._cache[self._slots(step, sequence, int(context + stop - start))[context:]] = step.token_ids[
                start:stop
            ] + self._offset(step, sequence)

    def _slots(self, step: StepInput, sequence: int, num_tokens: int) -> Int32:
        return token_slots(step.block_tables[sequence], num_tokens, self.limits.block_tokens)

    def _offset(self, step: StepInput, sequence: int) -> int:
        """Return what the cache adds to token ids: the KV of one adapter is of no use to another."""
        slot = -1 if step.adapters is None else int(step.adapters[sequence])
        if slot < 0:
            return 0
        return self.vocab_size * (1 + int.from_bytes(self._adapters[slot].identity.encode()) % _MAX_OFFSETS)

    def _prefixes(self, step: StepInput, rows: Int32) -> Iterator[Int32]:
        """Yield for each row the tokens of its sequence up to its own, as cached."""
        for row in rows:
            sequence = int(np.searchsorted(step.query_starts, row, side="right")) - 1
            position = int(step.context_lens[sequence] + row - step.query_starts[sequence])
            prefix = self._cache[self._slots(step, sequence, position + 1)]
            if (prefix < 0).any():
                raise EngineFailed(f"Position {int(np.argmax(prefix < 0))} of a context was never written.")
            yield prefix

    def _outputs(self, step: StepInput, rows: Int32, size: int) -> Float32:
        """Return for each row `size` numbers that are a function of all tokens up to its own."""
        outputs = [hashed_logits(prefix, size) for prefix in self._prefixes(step, rows)]
        return np.stack(outputs) if outputs else np.empty((0, size), np.float32)

    def _adjust(self, logits: Float32, prefix: Int32) -> None:
        """Apply the script and the bias to the logits that follow `prefix`."""
        forced = self._script(tuple((prefix % self.vocab_size).tolist())) if self._script is not None else None
        if forced is not None:
            logits[forced] = SCRIPTED_LOGIT
        for token, value in self._bias.items():
            logits[token] += value


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
