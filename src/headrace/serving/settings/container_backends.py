"""Meanings of names that depend on the backend or on a GPU: engines, drafts, parallelism, and arguments of vLLM."""

import json
from collections.abc import Mapping

from headrace.core.engine_names import ENGINES, engine_name
from headrace.serving.settings.container_meanings import (
    Converted,
    Fills,
    FillsPart,
    ForBackends,
    Meaning,
    NoEffect,
    OnGpu,
    by_value,
)
from headrace.serving.settings.container_values import LORA_TUNING, NO_DRAFT_MODEL, NO_GPU, NOT_SPLIT
from headrace.serving.settings.rules import read_json_object

_VLLM = ("vllm",)
_ONLY_VLLM = NoEffect("it is an argument of vLLM, which does not serve")


def _read_engine(raw: str) -> Converted:
    """Accept LMI's names of engines; `auto` leaves it to weaker sources, such as the image."""
    try:
        name = engine_name(raw)
    except ValueError:
        raise ValueError(f"one of {', '.join(ENGINES)}") from None
    return (None if name == "auto" else name), ENGINES[name].remark


def _read_speculative_config(raw: str) -> Converted:
    """Return the number of draft tokens if vLLM's method is `ngram`; other methods have no counterpart here."""
    expected = 'a JSON object as {"method": "ngram", "num_speculative_tokens": 5}'
    try:
        config = json.loads(raw)
        if "ngram" not in (config.get("method"), str(config.get("model")).strip("[]")):
            return None, "there are no draft models in this version; draft tokens come from prompt lookup"
        return str(int(config["num_speculative_tokens"])), ""
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
        raise ValueError(expected) from None


def _vllm_lookup(raw: str) -> Mapping[str, object]:
    """Return vLLM's argument for a number of draft tokens from prompt lookup."""
    if not raw.isdecimal() or not int(raw):
        return {}
    return {"speculative_config": {"method": "ngram", "num_speculative_tokens": int(raw), "prompt_lookup_max": 4}}


def _read_argument(raw: str) -> object:
    """Return a number, truth value or object that a text means as JSON, else the text itself."""
    lowered = raw.lower()
    try:
        return json.loads(lowered if lowered in ("true", "false") else raw)
    except (ValueError, RecursionError):
        return raw


def vllm_argument(*path: str, otherwise: NoEffect = _ONLY_VLLM) -> ForBackends:
    """Return the meaning of a name that sets an argument of vLLM's engine, or a key of one."""

    def read(raw: str) -> Mapping[str, object]:
        value = _read_argument(raw)
        for key in reversed(path[1:]):
            value = {key: value}
        return {path[0]: value}

    return ForBackends(_VLLM, FillsPart("vllm_args", read, {}), otherwise)


ROLLING_BATCH = Fills("rolling_batch", _read_engine)
MAX_DRAFT_TOKENS = Fills("max_draft_tokens", vllm=_vllm_lookup)
SPECULATIVE_CONFIG = Fills(
    "max_draft_tokens", _read_speculative_config, lambda raw: {"speculative_config": read_json_object(raw)}
)
DEVICE = Fills(
    "device", by_value({"cuda": "cuda", "cpu": "cpu", "xpu hpu npu": (None, "there is no such device here")})
)
GPU_LAYERS = Fills("device", lambda raw: ("cpu", "") if raw == "0" else (None, ""))
"""llama.cpp's number of layers on a GPU: with none of them, the CPU."""
TENSOR_PARALLEL = OnGpu(
    Fills("tensor_parallel_size", lambda raw: ("max" if raw.lower() in ("auto", "all") else raw, "")), NOT_SPLIT
)
PIPELINE_PARALLEL = OnGpu(vllm_argument("pipeline_parallel_size", otherwise=NOT_SPLIT), NOT_SPLIT)
GPU_MEMORY = OnGpu(Fills("gpu_memory_utilization"), NO_GPU)
CPU_OFFLOAD = OnGpu(vllm_argument("cpu_offload_gb", otherwise=NO_GPU), NO_GPU)
_NO_GRAPHS = Fills(
    "enforce_eager",
    lambda raw: ("true", "") if raw == "0" else (None, "the backend determines the sizes of its CUDA graphs"),
)
CUDA_GRAPHS = OnGpu(ForBackends(("torch", "vllm"), _NO_GRAPHS, NO_GPU), NO_GPU)
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

_LIMITS = (
    "async_scheduling block_size calculate_kv_scales config_format cpu_offload_gb disable_custom_all_reduce "
    "disable_sliding_window enable_expert_parallel fully_sharded_loras kv_cache_dtype kv_cache_memory_bytes "
    "load_format lora_dtype max_cpu_loras model_impl num_gpu_blocks_override optimization_level "
    "pipeline_parallel_size quantization safetensors_load_strategy scheduling_policy seed"
)
VLLM_LIMITS = frozenset(_LIMITS.split())
"""Arguments of vLLM's engine that are formats and limits: they name no path, no other model and no code."""

_PLAIN_ARGUMENTS = (
    "async_scheduling calculate_kv_scales compilation_config config_format cpu_offload_gb disable_custom_all_reduce "
    "disable_sliding_window distributed_executor_backend enable_expert_parallel hf_config_path kv_cache_memory_bytes "
    "model_impl num_gpu_blocks_override optimization_level quantization_param_path scheduling_policy "
    "safetensors_load_strategy structured_outputs_config"
)
VLLM_OPTIONS: dict[str, Meaning] = {
    **{
        name: vllm_argument(name, otherwise=LORA_TUNING)
        for name in ("max_cpu_loras", "fully_sharded_loras", "lora_dtype")
    },
    "speculative_draft_model": vllm_argument("speculative_config", "model", otherwise=NO_DRAFT_MODEL),
    "speculative_length": vllm_argument("speculative_config", "num_speculative_tokens", otherwise=NO_DRAFT_MODEL),
    "draft_model_tp_size": vllm_argument("speculative_config", "draft_tensor_parallel_size", otherwise=NO_DRAFT_MODEL),
    **{name: vllm_argument(name) for name in _PLAIN_ARGUMENTS.split()},
}
"""Names that only vLLM's engine knows. Source: vLLM 0.32 `engine/arg_utils.py`."""
