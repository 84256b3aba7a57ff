"""
The proof that a network gives the same logits through our KV cache as by itself.

A network's code may hide what our cache does not carry: an attention bias, a convolution over tokens, a state. The
facts in `support` cover the known cases; this module runs the network both ways on a few tokens.
"""

from typing import Final

import numpy as np
import torch

from headrace.core.errors import UnsupportedModel
from headrace.inference.runner.sampling import stack_sampling
from headrace.inference.runner.step import Int32, RunnerLimits, StepInput
from headrace.inference.runner.transformers.logits import HeadCall
from headrace.inference.runner.transformers.runner import Network

_NUM_TOKENS: Final = 16
_NUM_OTHERS: Final = 5
_TOLERANCE: Final = 0.01
_ROUNDED_TOLERANCE: Final = 0.25
"""Relative to the spread of the logits. 16-bit rounding may move a token to another expert; a lost mask gives 0.7."""


def own_logits(model: torch.nn.Module, limits: RunnerLimits, vocab_size: int) -> torch.Tensor:
    """Return the logits of the test tokens by the network alone, without a cache."""
    tokens = _tokens(limits, vocab_size)
    with torch.inference_mode():
        return HeadCall(model).run(tokens, np.arange(len(tokens), dtype=np.int32), use_cache=False)


def check_logits(
    network: Network, expected: torch.Tensor, limits: RunnerLimits, vocab_size: int, *, is_rounded: bool
) -> None:
    """
    Compare the logits of the test tokens, computed in two chunks beside another sequence, with the network's own.

    `is_rounded`: the network computes in 16 bits, or rounds its inputs as LLM.int8 does.

    Raises:
        UnsupportedModel: they differ.
    """
    tokens = _tokens(limits, vocab_size)
    cut = len(tokens) // 2
    has_other = limits.num_blocks > 1 and limits.max_step_sequences > 1
    other = tokens[:_NUM_OTHERS] if has_other else tokens[:0]
    steps = [_step([(tokens[:cut], 0, 0)]), _step([(tokens[cut:], cut, 0), (other, 0, 1)][: 1 + has_other])]
    with torch.inference_mode():
        actual = torch.cat([network.logits(step) for step in steps])
    wanted = torch.cat([expected, expected[: len(other)]])
    spread = (wanted - wanted.mean(dim=-1, keepdim=True)).norm()
    difference = ((actual - wanted).norm() / spread).item()
    if not difference < (_ROUNDED_TOLERANCE if is_rounded else _TOLERANCE):
        raise UnsupportedModel(f"its logits through the KV cache differ from its own by {difference:.0%}")


def _tokens(limits: RunnerLimits, vocab_size: int) -> Int32:
    count = min(_NUM_TOKENS, limits.block_tokens, limits.max_context_tokens, limits.max_step_tokens - _NUM_OTHERS)
    return ((np.arange(max(2, count)) * 7919 + 13) % vocab_size).astype(np.int32)


def _step(chunks: list[tuple[Int32, int, int]]) -> StepInput:
    """Return a step with all logits: tokens, context length and block of each sequence."""
    lengths = [len(tokens) for tokens, _, _ in chunks]
    num_tokens = sum(lengths)
    return StepInput(
        token_ids=np.concatenate([tokens for tokens, _, _ in chunks]),
        query_starts=np.cumsum([0, *lengths], dtype=np.int32),
        context_lens=np.array([context for _, context, _ in chunks], np.int32),
        block_tables=np.array([[block] for _, _, block in chunks], np.int32),
        rows=np.arange(num_tokens, dtype=np.int32),
        sampling=stack_sampling([{}] * num_tokens),
    )
