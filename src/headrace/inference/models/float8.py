"""
Values of 8-bit and 4-bit floating point numbers.

Source: Open Compute Project, "OCP 8-bit Floating Point" and "Microscaling Formats (MX)" 1.0.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

_EXPONENT_BIAS: Final = 7
_MANTISSA_STEPS: Final = 8
_E8M0_BIAS: Final = 127
_LARGEST_HALF: Final = 15
"""The exponent of the largest power of two in float16."""

E2M1: Final = np.array(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6],
    dtype=np.float32,
)
"""The 16 values of a 4-bit floating point number."""


def _e4m3_table() -> npt.NDArray[np.float32]:
    codes = np.arange(128)
    exponents, mantissas = codes >> 3, codes & 7
    normal = (1 + mantissas / _MANTISSA_STEPS) * 2.0 ** (exponents - _EXPONENT_BIAS)
    subnormal = mantissas / _MANTISSA_STEPS * 2.0 ** (1 - _EXPONENT_BIAS)
    values = np.where(exponents == 0, subnormal, normal)
    values[127] = np.nan  # e4m3fn has no infinities: all ones are the only NaN
    return np.concatenate([values, -values]).astype(np.float32)


_E4M3: Final = _e4m3_table()


def e4m3_values(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return _E4M3[codes]


def e8m0_values(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return powers of two from their biased exponents; 255 is NaN."""
    values = np.ldexp(np.float32(1), codes.astype(np.int32) - _E8M0_BIAS)
    values[codes == 255] = np.nan
    return values.astype(np.float32)


def e8m0_halves(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float16] | None:
    """
    Return powers of two from their biased exponents as halves, or None if one is larger than any half.

    Those below 2^-24 become zero.
    """
    return e8m0_values(codes).astype("<f2") if codes.max(initial=0) <= _E8M0_BIAS + _LARGEST_HALF else None


def e2m1_values(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return two values for each byte along the last axis, the low nibble first."""
    pairs = np.stack([packed & 15, packed >> 4], axis=-1)
    return E2M1[pairs].reshape(*packed.shape[:-1], -1)
