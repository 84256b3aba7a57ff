"""Number types of tiles, and tiles of rows whose owners (sequences, experts) have sizes that only the device knows."""

from types import MappingProxyType
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOATS: Final = MappingProxyType({torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16})


def compute_dtype(tensor: Tensor) -> tl.dtype:
    """Return the type in which tiles are multiplied: that of the tensor, but float32 in the interpreter."""
    if triton.knobs.runtime.interpret:
        return tl.float32  # the interpreter has no arithmetic in bfloat16
    return FLOATS[tensor.dtype]


def num_tiles(num_rows: int, num_owners: int, tile_rows: int) -> int:
    """Return the tiles to launch, at least as many as the owners have; programs without rows end at once."""
    return num_rows // tile_rows + num_owners


@triton.jit
def find_owner(starts, tile, num_owners, TILE_ROWS: tl.constexpr):
    """
    Return the owner of a tile: that of index i has tiles from `starts[i] // TILE_ROWS + i` on.

    `starts` has the first row of each owner.
    """
    low = 0
    high = num_owners
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts + middle) // TILE_ROWS + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def first_row_of_tile(start, tile, owner, TILE_ROWS: tl.constexpr):
    """Return the first row of a tile, counted from the first row (`start`) of its owner."""
    return (tile - start // TILE_ROWS - owner) * TILE_ROWS
