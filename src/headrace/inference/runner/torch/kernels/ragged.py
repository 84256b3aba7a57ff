"""Tiles of rows that belong to owners of different sizes (sequences, experts), which only the device knows."""

import triton
import triton.language as tl


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
