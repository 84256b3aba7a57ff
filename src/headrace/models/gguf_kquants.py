"""
Convert Q4_K blocks to Q4_1 blocks: both are nibbles with a scale and a minimum for every 32 numbers.

The nibbles are unchanged. A scale (minimum) of Q4_K is the product of the super-block's half and 6 bits; it is rounded
once, to the half of Q4_1: a relative error of at most 2^-11, a 140th of the step between two nibbles.
Source: ggml `block_q4_K`, gguf-py `quants.py`.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK_BYTES: Final = 144
"""Two halves, 12 bytes of 6-bit scales and minima, 256 nibbles."""
_GROUPS: Final = 8
_HALF_GROUP: Final = 16


def q4_k_as_q4_1(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return rows of Q4_K blocks as rows of Q4_1 blocks."""
    blocks = np.ascontiguousarray(rows).reshape(-1, BLOCK_BYTES)
    halves = blocks[:, :4].copy().view("<f2").astype(np.float32)
    scales, minima = _six_bits(blocks[:, 4:16])
    head = np.stack([halves[:, :1] * scales, -halves[:, 1:] * minima], axis=-1).astype("<f2").view(np.uint8)
    packed = blocks[:, 16:].reshape(-1, _GROUPS // 2, 1, 2 * _HALF_GROUP)
    groups = np.concatenate([packed & 15, packed >> 4], axis=2).reshape(-1, _GROUPS, 2 * _HALF_GROUP)
    nibbles = groups[..., :_HALF_GROUP] | groups[..., _HALF_GROUP:] << 4
    return np.concatenate([head.reshape(-1, _GROUPS, 4), nibbles], axis=-1).reshape(len(rows), -1)


def _six_bits(packed: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Unpack scales and minima of the 8 groups; the first four share bytes with the upper bits of the last four."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, rest & 15 | first >> 2 & 48], axis=1)
    minima = np.concatenate([second & 63, rest >> 4 | second >> 2 & 48], axis=1)
    return scales, minima
