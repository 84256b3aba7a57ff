"""
The choice of weight and KV formats: a pure function of the model, the machine and the requested formats.

Below a billion parameters quality decides: see docs/decisions/0016-quality-first-below-a-billion.md.
"""

from dataclasses import dataclass
from typing import Final

from headrace.core.errors import SettingsError
from headrace.core.sizes import format_size

DTYPES: Final = ("bf16", "w8a8", "w4a8")
"""Formats by size, largest first: if one does not fit, the next is tried."""
SMOOTHQUANT: Final = "smoothquant"
"""W8A8, calibrated and smoothed at load."""
KV_DTYPES: Final = ("bf16", "int8")
SMALL_MODEL_PARAMETERS: Final = 1_000_000_000
"""Smaller models are fast in any format and lose most quality by rounding."""
BYTES_PER_WEIGHT: Final = {"bf16": 2.0, "w8a8": 1.0, "w4a8": 0.625}
WEIGHTS_SHARE: Final = 0.8
"""Share of memory for weights; the rest is for the KV cache, activations and the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The properties of a machine that formats depend on."""

    available_bytes: int
    has_native_bf16: bool
    """True if the CPU multiplies bf16 in hardware; otherwise it is emulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The chosen weight and KV formats, with the reason."""

    dtype: str
    kv_dtype: str
    reason: str
    is_smoothed: bool = False
    """The weights are calibrated and smoothed at load (`loading.smoothquant`)."""


def choose_formats(dtype: str, kv_dtype: str, *, num_parameters: int, stored_bits: int, machine: Machine) -> Formats:
    """
    Return the formats to serve a model in.

    Args:
        dtype: The requested format, or "auto".
        kv_dtype: The requested format, or "auto".
        num_parameters: The number of parameters in matrices.
        stored_bits: Bits per weight in the file, for most weights of the layers.
        machine: The machine to run on.

    Raises:
        SettingsError: A format is unknown.
    """
    _check("dtype", dtype, (*DTYPES, SMOOTHQUANT))
    _check("kv_dtype", kv_dtype, KV_DTYPES)
    is_smoothed = dtype == SMOOTHQUANT
    is_chosen_by_quality = dtype == "auto" and num_parameters < SMALL_MODEL_PARAMETERS
    if dtype == "auto":
        dtype, reason = _choose_dtype(num_parameters, stored_bits, machine)
    elif is_smoothed:
        dtype, reason = "w8a8", "w8a8 as requested, smoothed"
    else:
        reason = f"{dtype} as requested"
    if kv_dtype == "auto":
        kv_dtype = "bf16" if dtype == "bf16" or (is_chosen_by_quality and dtype == "w8a8") else "int8"
    return Formats(dtype=dtype, kv_dtype=kv_dtype, reason=reason, is_smoothed=is_smoothed)


def _choose_dtype(num_parameters: int, stored_bits: int, machine: Machine) -> tuple[str, str]:
    stored = "w4a8" if stored_bits <= 4 else "w8a8" if stored_bits <= 8 else "bf16"
    preferred, reason = stored, f"{stored} is nearest to the file ({stored_bits} bits a weight)"
    if num_parameters < SMALL_MODEL_PARAMETERS and stored == "w4a8":
        preferred, reason = (
            "w8a8",
            "w8a8 because models under 1 B parameters answer better than in w4a8",
        )
    elif num_parameters >= SMALL_MODEL_PARAMETERS and stored == "bf16" and not machine.has_native_bf16:
        preferred, reason = "w8a8", "w8a8 because this CPU only emulates bf16, which is slow from 1 B parameters on"
    dtype = _largest_that_fits(preferred, num_parameters, machine.available_bytes)
    if dtype != preferred:
        needed = format_size(round(num_parameters * BYTES_PER_WEIGHT[preferred]))
        reason = f"{dtype} because {preferred} weights take {needed} of {format_size(machine.available_bytes)}"
    return dtype, reason


def _largest_that_fits(preferred: str, num_parameters: int, available_bytes: int) -> str:
    candidates = DTYPES[DTYPES.index(preferred) :]
    room = WEIGHTS_SHARE * available_bytes
    return next((dtype for dtype in candidates if num_parameters * BYTES_PER_WEIGHT[dtype] <= room), candidates[-1])


def _check(name: str, requested: str, known: tuple[str, ...]) -> None:
    if requested not in ("auto", *known):
        raise SettingsError(f"{name} is {requested!r}; expected one of: auto, {', '.join(known)}.")
