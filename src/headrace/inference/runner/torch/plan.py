"""The plan of a torch runner: formats, limits and the memory to use, decided before anything is allocated."""

from dataclasses import dataclass
from typing import Final

import torch

from headrace.core.errors import SettingsError
from headrace.inference.models.weights import Encoding
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.step import RunnerLimits

DTYPES: Final = ("bf16", "fp16", "fp32", "fp8", "w8a8", "w4a16")
ACTIVATION_DTYPES: Final = {"fp16": torch.float16, "fp32": torch.float32}
"""Types of activations and the KV cache where it is not bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchPlan:
    """Everything that a rank needs to know besides the weights. It can be pickled."""

    dtype: str
    device: str
    """cpu or cuda."""
    limits: RunnerLimits
    """`num_blocks` is decided when the weights are loaded."""
    budget: MemoryBudget
    """The memory of this machine; that of a GPU is known once it is opened."""
    num_ranks: int = 1
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    is_batch_invariant: bool = False

    @property
    def activations(self) -> torch.dtype:
        """The type of activations, tables and the KV cache."""
        return ACTIVATION_DTYPES.get(self.dtype, torch.bfloat16)

    @property
    def matrix_format(self) -> str:
        """The format of the matrices in layers: plain, fp8, w8a8 or w4a16."""
        return self.dtype if self.dtype in {"fp8", "w8a8", "w4a16"} else "plain"


def choose_dtype(requested: str, *, encoding: Encoding, stored_bits: int) -> tuple[str, str]:
    """Return the format to serve in, and why; `auto` matches the file. Raises `SettingsError`."""
    if requested == "auto":
        unquantized = "fp16" if encoding is Encoding.F16 and stored_bits == 16 else "bf16"
        dtype = "w4a16" if stored_bits <= 4 else unquantized
        return dtype, f"{dtype} is closest to the file's {stored_bits}-bit weights"
    if requested not in DTYPES:
        raise SettingsError(
            f"dtype is {requested}; expected one of auto, {', '.join(DTYPES)} with the torch backend. "
            "Choose one of them, or another backend.",
            name="dtype",
        )
    return requested, f"{requested} as requested"


def check_kv_dtype(requested: str, dtype: str) -> None:
    """Refuse a format of the KV cache other than that of the activations; raises `SettingsError`."""
    kv_dtype = dtype if dtype in ACTIVATION_DTYPES else "bf16"
    if requested not in {"auto", kv_dtype}:
        raise SettingsError(
            f"kv_dtype is {requested}; expected auto or {kv_dtype} with dtype {dtype} and the torch backend.",
            name="kv_dtype",
        )
