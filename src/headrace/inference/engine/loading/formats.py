"""
The choice of weight and KV formats: a pure function of the model, the machine and the requested formats.

Below a billion parameters quality decides: see docs/decisions/0022-two-bytes-for-each-activation.md.
"""

from dataclasses import dataclass
from typing import Final

from headrace.core.errors import SettingsError
from headrace.core.sampling_defaults import SMALL_MODEL_PARAMETERS
from headrace.core.sizes import format_size

DTYPES: Final = ("bf16", "w8a16", "w8a8", "w4a16", "w4a8")
"""Formats of weights and activations, best first."""
SMOOTHQUANT: Final = "smoothquant"
"""W8A8, calibrated and smoothed at load."""
KV_DTYPES: Final = ("bf16", "int8")
BYTES_PER_WEIGHT: Final = {"bf16": 2.0, "w8": 1.03125, "w4": 0.625}
"""By the part of a format that describes weights."""
_W4_BITS: Final = 4
_W8_BITS: Final = 8
WEIGHTS_SHARE: Final = 0.8
"""Share of memory for weights; the rest is for the KV cache, activations and the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The properties of a machine that formats depend on."""

    available_bytes: int
    has_native_bf16: bool
    """True if the CPU multiplies bf16 in hardware; otherwise it is emulated."""
    is_fastest_in_w4a8: bool = False
    """True if w4a8 is the fastest format at every batch size, as on AVX2; elsewhere w8a8 is in large batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The chosen weight and KV formats, with the reason."""

    dtype: str
    kv_dtype: str
    reason: str
    is_smoothed: bool = False
    """The weights are calibrated and smoothed at load (`loading.smoothquant`)."""


def choose_formats(
    dtype: str,
    kv_dtype: str,
    *,
    num_parameters: int,
    stored_bits: int,
    machine: Machine,
    is_mixed: bool = False,
    keeps_low_bits: bool = False,
) -> Formats:
    """
    Return the formats to serve a model in.

    Args:
        dtype: The requested format, or "auto".
        kv_dtype: The requested format, or "auto".
        num_parameters: The number of parameters in matrices.
        stored_bits: Bits per weight in the file, for most weights of the layers.
        machine: The machine to run on.
        is_mixed: Some matrices are stored in 4 bits and others in more, which keep 8 bits in w4a8 and w4a16.
        keeps_low_bits: Some matrices are stored in 2 or 3 bits, which w4a8 and w4a16 keep.

    Raises:
        SettingsError: A format is unknown.
    """
    _check("dtype", dtype, (*DTYPES, SMOOTHQUANT))
    _check("kv_dtype", kv_dtype, KV_DTYPES)
    is_smoothed = dtype == SMOOTHQUANT
    if dtype == "auto":
        dtype, reason = _choose_dtype(num_parameters, stored_bits, is_mixed, machine, keeps_low_bits=keeps_low_bits)
    elif is_smoothed:
        dtype, reason = "w8a8", "w8a8 as requested, smoothed"
    else:
        reason = f"{dtype} as requested"
    if kv_dtype == "auto":
        kv_dtype = "int8" if dtype.endswith("a8") else "bf16"
    return Formats(dtype=dtype, kv_dtype=kv_dtype, reason=reason, is_smoothed=is_smoothed)


def weight_format(dtype: str) -> str:
    """Return the part of a format that describes weights: bf16, w8 or w4."""
    return dtype.partition("a")[0]


def _choose_dtype(
    num_parameters: int, stored_bits: int, is_mixed: bool, machine: Machine, *, keeps_low_bits: bool
) -> tuple[str, str]:
    is_small = num_parameters < SMALL_MODEL_PARAMETERS
    inputs = "a16" if is_small else "a8"
    weights = "w4" if stored_bits <= _W4_BITS or (is_mixed and stored_bits <= _W8_BITS) else "w8"
    preferred = "bf16" if stored_bits > _W8_BITS else weights + inputs
    relation = "matches" if stored_bits in {4, 8, 16} and not is_mixed else "is closest to"
    stored = "weights of 4 and more bits" if is_mixed else f"{stored_bits}-bit weights"
    if keeps_low_bits and weights == "w4":
        relation, stored = "keeps", f"weights of {stored_bits} and other bits"
    reason = f"{preferred} {relation} the file's {stored}"
    if preferred.endswith("a16"):
        reason += "; under 1 B parameters 8-bit activations cost too much quality"
    elif not is_small and preferred == "bf16" and not machine.has_native_bf16:
        preferred, reason = "w8a8", "w8a8 because this CPU only emulates bf16, which is slow from 1 B parameters on"
    dtype = _largest_that_fits(preferred, inputs, num_parameters, machine.available_bytes)
    if dtype != preferred:
        needed = format_size(round(num_parameters * BYTES_PER_WEIGHT[weight_format(preferred)]))
        reason = f"{dtype} because {preferred} weights take {needed} of {format_size(machine.available_bytes)}"
    if machine.is_fastest_in_w4a8 and not is_small:
        reason += (
            ", the fastest format on this CPU" if dtype == "w4a8" else "; w4a8 is faster on this CPU, less accurately"
        )
    return dtype, reason


def _largest_that_fits(preferred: str, inputs: str, num_parameters: int, available_bytes: int) -> str:
    ladder = ("bf16", f"w8{inputs}", f"w4{inputs}")
    candidates = ladder[ladder.index(preferred) :]
    room = WEIGHTS_SHARE * available_bytes
    fitting = (dtype for dtype in candidates if num_parameters * BYTES_PER_WEIGHT[weight_format(dtype)] <= room)
    return next(fitting, candidates[-1])


def _check(name: str, requested: str, known: tuple[str, ...]) -> None:
    if requested not in ("auto", *known):
        raise SettingsError(f"{name} is {requested!r}; expected one of: auto, {', '.join(known)}.")
