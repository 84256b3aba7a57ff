"""The KV cache of a network whose layers may differ in shape: one tensor of keys and one of values a layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The keys and values that one layer caches for one token."""

    num_heads: int
    key_size: int
    value_size: int

    @property
    def values_per_token(self) -> int:
        """The number of values, of keys and values together."""
        return self.num_heads * (self.key_size + self.value_size)


def block_bytes(shapes: Sequence[LayerShape], block_tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes of a block, all layers together."""
    return sum(shape.values_per_token for shape in shapes) * block_tokens * dtype.itemsize


class KvPages:
    """Keys and values in blocks; a slot is `block * block_tokens + offset`."""

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        *,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_tokens = block_tokens
        self.device = device
        self._layers = [
            tuple(
                torch.zeros((num_blocks, block_tokens, shape.num_heads, size), dtype=dtype, device=device)
                for size in (shape.key_size, shape.value_size)
            )
            for shape in shapes
        ]

    def __len__(self) -> int:
        return len(self._layers)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values (blocks, block_tokens, heads, size) of a layer."""
        keys, values = self._layers[index]
        return keys, values

    def store(self, index: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Write keys and values (T, heads, size) of tokens to their slots (T,)."""
        for pages, new in zip(self._layers[index], (key, value), strict=True):
            _by_slot(pages).index_copy_(0, slots, new.to(pages.dtype))

    def gather(self, index: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values (T, heads, size) of the tokens in `slots` (T,)."""
        keys, values = (_by_slot(pages).index_select(0, slots) for pages in self._layers[index])
        return keys, values


def _by_slot(pages: torch.Tensor) -> torch.Tensor:
    return pages.view(prod(pages.shape[:2]), *pages.shape[2:])
