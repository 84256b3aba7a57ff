"""The methods of quantized weights that transformers reads: the packages and the device that each needs."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """The quantized weights of a checkpoint, for the transformers of this host."""

    method: str
    """`quant_method` of config.json."""
    missing: tuple[str, ...] = ()
    """Names on PyPI of packages that are not installed."""
    needs_gpu: bool = False
    is_known: bool = True
    """The installed transformers reads them."""


NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "aqlm": ("aqlm",),
    "auto-round": ("auto_round=auto-round",),
    "awq": ("gptqmodel",),
    "bitnet": (),
    "bitsandbytes": ("bitsandbytes",),
    "compressed-tensors": ("compressed_tensors=compressed-tensors",),
    "eetq": ("kernels",),
    "fbgemm_fp8": ("fbgemm_gpu=fbgemm-gpu-genai",),
    "fouroversix": ("fouroversix",),
    "fp8": (),
    "fp_quant": ("fp_quant",),
    "gptq": ("optimum", "gptqmodel"),
    "higgs": ("flute=flute-kernel", "fast_hadamard_transform"),
    "hqq": ("hqq",),
    "metal": (),
    "mxfp4": (),
    "mxfp8": (),
    "quark": ("quark=amd-quark",),
    "sinq": ("sinq",),
    "spqr": ("spqr_quant",),
    "torchao": ("torchao",),
    "vptq": ("vptq",),
}
"""
Packages beside the extra `[torch]`: `imported=on-PyPI`, or one name for both. Methods that are not listed need nothing.

Source: `validate_environment` of each quantizer of transformers 5.23, as for the methods whose code runs on GPUs only.
"""
_ON_GPUS_ONLY: Final = frozenset({"eetq", "fbgemm_fp8", "fouroversix", "fp_quant", "higgs", "spqr", "vptq"})
_ONLY_AT_LOAD: Final = frozenset({"gguf", "nvfp4", "quanto"})
"""Methods by which transformers quantizes plain weights, but reads no checkpoint."""


def quantization_of(method: str, readers: AbstractSet[str], is_importable: Callable[[str], bool]) -> Quantization:
    """
    Return what a checkpoint's quantization needs here.

    `method` is `quant_method` of config.json, empty as in the first checkpoints of bitsandbytes; `readers` are the
    methods of the installed transformers, empty: unknown.
    """
    method = method or "bitsandbytes"
    packages = (package.partition("=") for package in NEEDS.get(method, ()))
    return Quantization(
        method=method,
        missing=tuple(on_pypi or package for package, _, on_pypi in packages if not is_importable(package)),
        needs_gpu=method in _ON_GPUS_ONLY,
        is_known=method not in _ONLY_AT_LOAD and (not readers or any(reader.startswith(method) for reader in readers)),
    )
