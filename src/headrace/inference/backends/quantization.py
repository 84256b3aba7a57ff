"""The methods of quantized weights that transformers reads: the packages and the device that each needs."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    packages: Mapping[str, str]
    """Names on PyPI by the name that is imported."""
    gpu: bool = False


def _needs(*packages: str, gpu: bool = False) -> _Needs:
    """Return needs whose packages are `imported=on-PyPI`, or one name for both."""
    pairs = (package.partition("=") for package in packages)
    return _Needs(packages={name: other or name for name, _, other in pairs}, gpu=gpu)


NEEDS: Final[Mapping[str, _Needs]] = MappingProxyType(
    {
        "aqlm": _needs("aqlm"),
        "auto-round": _needs("auto_round=auto-round"),
        "awq": _needs("gptqmodel"),
        "bitnet": _needs(),
        "bitsandbytes": _needs("bitsandbytes"),
        "compressed-tensors": _needs("compressed_tensors=compressed-tensors"),
        "eetq": _needs("kernels", gpu=True),
        "fbgemm_fp8": _needs("fbgemm_gpu=fbgemm-gpu-genai", gpu=True),
        "fouroversix": _needs("fouroversix", gpu=True),
        "fp8": _needs(),
        "fp_quant": _needs("fp_quant", gpu=True),
        "gptq": _needs("optimum", "gptqmodel"),
        "higgs": _needs("flute=flute-kernel", "fast_hadamard_transform", gpu=True),
        "hqq": _needs("hqq"),
        "metal": _needs(),
        "mxfp4": _needs(),
        "mxfp8": _needs(),
        "quark": _needs("quark=amd-quark"),
        "sinq": _needs("sinq"),
        "spqr": _needs("spqr_quant", gpu=True),
        "torchao": _needs("torchao"),
        "vptq": _needs("vptq", gpu=True),
    }
)
"""
Packages beside the extra `[torch]`, and methods whose code runs on GPUs only. Methods that are not listed need nothing.

Source: `validate_environment` of each quantizer of transformers 5.23.
"""

_ONLY_AT_LOAD: Final = frozenset({"gguf", "nvfp4", "quanto"})
"""Methods by which transformers quantizes plain weights, but reads no checkpoint."""


def quantization_of(method: str, readers: AbstractSet[str], is_importable: Callable[[str], bool]) -> Quantization:
    """
    Return what a checkpoint's quantization needs here.

    Args:
        method: `quant_method` of config.json; empty as in the first checkpoints of bitsandbytes.
        readers: methods of the installed transformers; empty: unknown.
        is_importable: says whether a package is installed.
    """
    method = method or "bitsandbytes"
    needs = NEEDS.get(method, _needs())
    return Quantization(
        method=method,
        missing=tuple(name for package, name in needs.packages.items() if not is_importable(package)),
        needs_gpu=needs.gpu,
        is_known=method not in _ONLY_AT_LOAD and (not readers or any(reader.startswith(method) for reader in readers)),
    )
