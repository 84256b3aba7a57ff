"""Random batches, caches and reference results for tests of the parts of torch runners."""

import dataclasses

import numpy as np
import torch

from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.checks import token_slots
from headrace.inference.runner.reference import Layer
from headrace.inference.runner.step import RunnerLimits
from headrace.inference.runner.torch.batch import to_device
from headrace.inference.runner.torch.kv_cache import KvCache, KvShape
from tests.inference.runner.steps import make_step

SPEC = ModelSpec(
    family="test",
    num_layers=1,
    hidden_size=8,
    intermediate_size=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=50,
    max_positions=512,
    norm_eps=1e-5,
)


class AttentionCase:
    """A batch of sequences whose keys and values are random, and what attention must return for it."""

    def __init__(self, *sequences, block_tokens=4, value_dim=None, dtype=torch.float32, seed=0, **changes):
        """`sequences` are pairs of earlier and new tokens; `changes` those of the spec."""
        self.spec = dataclasses.replace(SPEC, **changes)
        self.rng = np.random.default_rng(seed)
        self.block_tokens = block_tokens
        sizes = [-(-(old + new) // block_tokens) for old, new in sequences]
        self.blocks = np.array_split(self.rng.permutation(sum(sizes) + 3).astype(np.int32), np.cumsum(sizes))[:-1]
        pieces = [([1] * new, old, blocks) for (old, new), blocks in zip(sequences, self.blocks, strict=True)]
        self.step = make_step(*pieces)
        self.batch = to_device(self.step, block_tokens=block_tokens, device="cpu")
        shape = KvShape(self.spec.num_kv_heads, self.spec.head_dim, value_dim or self.spec.head_dim)
        self.cache = KvCache([shape], num_blocks=sum(sizes) + 3, block_tokens=block_tokens, dtype=dtype, device="cpu")
        for part in self.cache.layer(0):
            part.copy_(self.normal(part.shape))
        self.query = self.normal((len(self.step.token_ids), self.spec.num_heads, self.spec.head_dim)).to(dtype)
        self.sinks = self.normal((self.spec.num_heads,)) if self.spec.sinks else None

    def normal(self, shape):
        return torch.from_numpy(self.rng.standard_normal(tuple(shape)).astype(np.float32))

    @property
    def options(self):
        """The arguments of `attend` for the spec."""
        return {
            "scale": self.spec.scale(0),
            "window": self.spec.window(0),
            "softcap": self.spec.attention_softcap,
            "sinks": self.sinks,
            "is_causal": self.spec.is_causal,
        }

    def expected(self):
        """The result of the reference runner (T, H, D)."""
        weights = {} if self.sinks is None else {"layers.0.sinks": self.sinks.numpy()}
        keys, values = (part.float().flatten(0, 1).numpy() for part in self.cache.layer(0))
        limits = RunnerLimits(
            num_blocks=len(keys) // self.block_tokens,
            block_tokens=self.block_tokens,
            max_step_tokens=1,
            max_step_sequences=1,
            max_step_rows=1,
            max_context_tokens=512,
        )
        layer = Layer(self.spec, 0, weights, limits)
        layer.keys, layer.values = keys, values
        parts = []
        for index, blocks in enumerate(self.blocks):
            start, stop = self.step.query_starts[index : index + 2]
            slots = token_slots(blocks, int(self.step.context_lens[index] + stop - start), self.block_tokens)
            parts.append(layer._attend(self.query[start:stop].float().numpy(), slots))
        return np.concatenate(parts).reshape(self.query.shape)
