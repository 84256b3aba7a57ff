"""Meanings of names that depend on the backend or on a GPU: parallelism, memory, and arguments of vLLM's engine."""

import json
from collections.abc import Callable, Mapping

from headrace.settings.container_meanings import (
    LORA_TUNING,
    NO_DRAFT_MODEL,
    NO_GPU,
    NOT_SPLIT,
    Converted,
    Fills,
    FillsPart,
    ForBackends,
    Meaning,
    NoEffect,
    OnGpu,
)

_VLLM = ("vllm",)
_ONLY_VLLM = NoEffect("it is an argument of vLLM, which does not serve")


def read_argument(raw: str) -> object:
    """Return a number, truth value or object that a text means as JSON, else the text itself."""
    lowered = raw.lower()
    try:
        return json.loads(lowered if lowered in ("true", "false") else raw)
    except (ValueError, RecursionError):
        return raw


def vllm_argument(*path: str, otherwise: NoEffect = _ONLY_VLLM) -> ForBackends:
    """
    Return the meaning of a name that sets an argument of vLLM's engine.

    Args:
        path: the argument, or the argument and a key of it.
        otherwise: the meaning with other backends.
    """
    return ForBackends(_VLLM, FillsPart("vllm_args", _under(path), {}), otherwise)


def _under(path: tuple[str, ...]) -> Callable[[str], Mapping[str, object]]:
    def read(raw: str) -> Mapping[str, object]:
        value = read_argument(raw)
        for key in reversed(path):
            value = {key: value}
        assert isinstance(value, dict), "a path has at least one key"
        return value

    return read


def _read_degree(raw: str) -> Converted:
    return ("max" if raw.lower() in ("auto", "all") else raw), ""


def _read_cuda_graphs(raw: str) -> Converted:
    return ("true", "") if raw == "0" else (None, "the backend determines the sizes of its CUDA graphs")


TENSOR_PARALLEL = OnGpu(Fills("tensor_parallel_size", _read_degree), NOT_SPLIT)
PIPELINE_PARALLEL = OnGpu(vllm_argument("pipeline_parallel_size", otherwise=NOT_SPLIT), NOT_SPLIT)
GPU_MEMORY = OnGpu(Fills("gpu_memory_utilization"), NO_GPU)
CPU_OFFLOAD = OnGpu(vllm_argument("cpu_offload_gb", otherwise=NO_GPU), NO_GPU)
CUDA_GRAPHS = OnGpu(
    ForBackends(("torch", "vllm"), Fills("enforce_eager", _read_cuda_graphs), NO_GPU),
    NO_GPU,
)
ENFORCE_EAGER = ForBackends(
    ("torch", "vllm"), Fills("enforce_eager"), NoEffect("there are no graphs to capture", ("true", "false"))
)
STEP_TIMEOUT = ForBackends(_VLLM, Fills("step_timeout_s"), NoEffect("only steps of vLLM have a time limit"))
TRUST_REMOTE_CODE = ForBackends(
    ("transformers", "vllm"),
    Fills("trust_remote_code"),
    NoEffect("this backend never runs code that comes with a checkpoint", ("false", "0")),
)
LOAD_FORMAT = vllm_argument(
    "load_format", otherwise=NoEffect("the format of the weights is read from the files", ("auto", "safetensors"))
)
BLOCK_SIZE = vllm_argument("block_size", otherwise=NoEffect("the kernels determine the block size"))
SEED = vllm_argument("seed", otherwise=NoEffect("the seed is a field of each request"))

VLLM_LIMITS = frozenset(
    (
        *("async_scheduling", "block_size", "calculate_kv_scales", "config_format", "cpu_offload_gb"),
        *("disable_custom_all_reduce", "disable_sliding_window", "enable_expert_parallel", "fully_sharded_loras"),
        *("kv_cache_dtype", "kv_cache_memory_bytes", "load_format", "lora_dtype", "max_cpu_loras", "model_impl"),
        *("num_gpu_blocks_override", "optimization_level", "pipeline_parallel_size", "quantization"),
        *("safetensors_load_strategy", "scheduling_policy", "seed"),
    )
)
"""Arguments of vLLM's engine that are formats and limits: they name no path, no other model and no code."""

VLLM_OPTIONS: dict[str, Meaning] = {
    **{
        name: vllm_argument(name, otherwise=LORA_TUNING)
        for name in ("max_cpu_loras", "fully_sharded_loras", "lora_dtype")
    },
    "speculative_draft_model": vllm_argument("speculative_config", "model", otherwise=NO_DRAFT_MODEL),
    "speculative_length": vllm_argument("speculative_config", "num_speculative_tokens", otherwise=NO_DRAFT_MODEL),
    "draft_model_tp_size": vllm_argument("speculative_config", "draft_tensor_parallel_size", otherwise=NO_DRAFT_MODEL),
    **{
        name: vllm_argument(name)
        for name in (
            *("async_scheduling", "calculate_kv_scales", "compilation_config", "config_format", "cpu_offload_gb"),
            *("disable_custom_all_reduce", "disable_sliding_window", "distributed_executor_backend"),
            *("enable_expert_parallel", "hf_config_path", "kv_cache_memory_bytes", "model_impl"),
            *("num_gpu_blocks_override", "optimization_level", "quantization_param_path", "scheduling_policy"),
            *("safetensors_load_strategy", "structured_outputs_config"),
        )
    },
}
"""Names that only vLLM's engine knows. Source: vLLM 0.32 `engine/arg_utils.py`."""
