"""The paged KV cache: blocks of tokens, addressed by slots (`block * block_tokens + offset`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.inference.runner.torch.batch import uses_triton


@dataclass(frozen=True, slots=True)
class KvShape:
    """The keys and values of a token in one layer; their sizes differ in multi-head latent attention."""

    num_heads: int
    key_dim: int
    value_dim: int

    @property
    def size(self) -> int:
        return self.num_heads * (self.key_dim + self.value_dim)


def block_bytes(shapes: Sequence[KvShape], *, block_tokens: int, dtype: torch.dtype) -> int:
    return block_tokens * sum(shape.size for shape in shapes) * dtype.itemsize


class KvCache:
    """The keys and values of all layers, in one allocation."""

    def __init__(
        self,
        shapes: Sequence[KvShape],
        *,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.block_tokens = block_tokens
        self.device = torch.device(device)
        num_tokens = num_blocks * block_tokens
        # Zeros: plain attention multiplies whole blocks, and a weight of 0 does not hide a NaN.
        memory = torch.zeros(num_tokens * sum(shape.size for shape in shapes), dtype=dtype, device=device)
        self._layers: list[tuple[Tensor, Tensor]] = []
        sizes = [num_tokens * shape.num_heads * dim for shape in shapes for dim in (shape.key_dim, shape.value_dim)]
        parts = iter(torch.split(memory, sizes))
        for shape in shapes:
            token = (num_blocks, block_tokens, shape.num_heads)
            self._layers.append((next(parts).view(*token, shape.key_dim), next(parts).view(*token, shape.value_dim)))

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a layer, each (blocks, block_tokens, heads, dim)."""
        return self._layers[index]

    def store(self, keys: Tensor, values: Tensor, layer: int, slots: Tensor) -> None:
        """Write the keys (T, heads, key_dim) and values (T, heads, value_dim) of tokens to their slots (T,)."""
        key_cache, value_cache = self._layers[layer]
        store(keys, values, key_cache, value_cache, slots)

    def put(self, keys: Tensor, values: Tensor, layer: int, slots: Tensor) -> None:
        """Write keys and values as `store` does, to slots (T,) int64 that all exist."""
        for cache, new in zip(self._layers[layer], (keys, values), strict=True):
            cache.flatten(0, 1).index_copy_(0, slots, new.to(cache.dtype))

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values (T, heads, dim) in slots (T,)."""
        keys, values = (cache.flatten(0, 1).index_select(0, slots) for cache in self._layers[layer])
        return keys, values

    def __len__(self) -> int:
        return len(self._layers)


def store(keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Write keys and values (T, heads, dim) to their slots (T,) of a layer's cache; -1 is not written."""
    if uses_triton(keys):
        from headrace.inference.runner.torch.kernels.elementwise import store as launch

        launch(keys, values, key_cache, value_cache, slots)
        return
    used = (slots >= 0).nonzero()[:, 0]
    chosen = slots.index_select(0, used).long()
    for cache, new in ((key_cache, keys), (value_cache, values)):
        cache.flatten(0, 1).index_copy_(0, chosen, new.index_select(0, used).to(cache.dtype))
