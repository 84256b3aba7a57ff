"""Decode tensors of GGUF types that runners do not read, on all cores; types of two or three values become Q4_1."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.core.threads import usable_cpus
from headrace.models import gguf_codebooks, gguf_kquants
from headrace.models.gguf_file import BLOCKS
from headrace.models.gguf_kquants import Blocks, Values

_CHUNK_NUMBERS: Final = 1 << 17
"""Numbers decoded at a time: intermediate results stay in the L2 cache."""
_MAX_THREADS: Final = 16
_GROUP: Final = 32
TERNARY: Final = frozenset({34, 35, 41})
"""TQ1_0, TQ2_0 and Q1_0: every number is -d, 0 or d."""


def dequantize(rows: npt.NDArray[np.uint8], type_id: int) -> Values:
    """
    Return rows of blocks as float32.

    Raises:
        NotImplementedError, ValueError: neither this module nor the `gguf` package decodes the type.
    """
    num_numbers, num_bytes = BLOCKS[type_id]
    blocks = np.ascontiguousarray(rows).reshape(-1, num_bytes)
    values = np.empty((len(blocks), num_numbers), np.float32)
    decode = _DECODERS.get(type_id) or partial(_decode_by_gguf, type_id)
    step = _CHUNK_NUMBERS // num_numbers

    def decode_chunk(start: int) -> None:
        with np.errstate(invalid="ignore", over="ignore"):  # scales of a damaged file may be infinite
            values[start : start + step] = decode(blocks[start : start + step])

    if len(blocks) <= step:
        decode_chunk(0)
    else:
        with ThreadPoolExecutor(min(len(usable_cpus()), _MAX_THREADS)) as pool:
            for _ in pool.map(decode_chunk, range(0, len(blocks), step)):
                pass
    return values.reshape(len(rows), -1)


def ternary_as_q4_1(values: Values) -> npt.NDArray[np.uint8] | None:
    """Return rows whose groups of 32 hold only -d, 0 and d as rows of Q4_1 blocks; None if some hold other numbers."""
    groups = values.reshape(-1, _GROUP)
    sizes = np.abs(groups)
    largest = sizes.max(axis=1, keepdims=True)
    if not ((sizes == largest) | (sizes == 0)).all():
        return None
    codes = np.where(groups == 0, 1, np.where(groups > 0, 2, 0)).astype(np.uint8)
    head = np.concatenate([largest, -largest], axis=1).astype("<f2").view(np.uint8)
    packed = codes[:, : _GROUP // 2] | codes[:, _GROUP // 2 :] << 4
    return np.concatenate([head, packed], axis=1).reshape(len(values), -1)


def _decode_q1_0(blocks: Blocks) -> Values:
    """Decode blocks of a half and 128 bits, which are the signs from the lowest up: 0 is negative."""
    halves = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    signs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1
    return halves * signs


def _decode_by_gguf(type_id: int, blocks: Blocks) -> Values:
    from gguf import GGMLQuantizationType, quants

    # As one row: gguf-py takes 16 rows at a time.
    values: Values = quants.dequantize(blocks.reshape(1, -1), GGMLQuantizationType(type_id))
    return values.reshape(len(blocks), -1)


_DECODERS: Final[Mapping[int, Callable[[Blocks], Values]]] = MappingProxyType(
    {
        6: gguf_kquants.decode_q5_0,
        7: gguf_kquants.decode_q5_1,
        10: gguf_kquants.decode_q2_k,
        11: gguf_kquants.decode_q3_k,
        13: gguf_kquants.decode_q5_k,
        14: gguf_kquants.decode_q6_k,
        16: gguf_codebooks.decode_iq2_xxs,
        17: gguf_codebooks.decode_iq2_xs,
        18: gguf_codebooks.decode_iq3_xxs,
        19: gguf_codebooks.decode_iq1_s,
        20: gguf_codebooks.decode_iq4_nl,
        21: gguf_codebooks.decode_iq3_s,
        22: gguf_codebooks.decode_iq2_s,
        23: gguf_codebooks.decode_iq4_xs,
        29: gguf_codebooks.decode_iq1_m,
        39: gguf_codebooks.decode_mxfp4,
        41: _decode_q1_0,
    }
)
