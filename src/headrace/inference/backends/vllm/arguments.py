"""
The arguments of vLLM's engine from our settings. Pure; needs no vLLM.

`vllm_args` wins over what the settings say, except for the arguments that the text on our side depends on.
"""

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.core.errors import SettingsError
from headrace.inference.engine.config import EngineConfig, EngineLimits, ModelSource
from headrace.inference.models.model import HfModel

DTYPES: Final = {"auto": "auto", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Our names of formats that vLLM computes in, with its own."""
_LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_OWNED: Final = {
    "model": "the setting model",
    "tokenizer": "the model's own",
    "skip_tokenizer_init": "always off: grammars need the tokenizer",
    "runner": "always generate",
    "convert": "always none",
    "max_logprobs": "the setting max_top_n_tokens",
    "logprobs_mode": "always raw_logprobs",
    "structured_outputs_config": 'always {"backend": "guidance"}',
    "generation_config": "the setting generation_config",
    "enable_lora": "the setting enable_lora",
    "max_loras": "the setting max_loras",
    "max_lora_rank": "the setting max_lora_rank",
    "stream_interval": "always 1",
    "shutdown_timeout": "the setting shutdown_grace_s",
}
"""Arguments that `vllm_args` may not set, with the setting or rule that decides each."""
_DRAIN_S: Final = 24 * 3600
"""The engine process lets running requests finish after a SIGTERM of its own; the server ends them at its deadline."""
_HALF_BYTES: Final = 2
_UNKNOWN_KV_BYTES: Final = 4 << 30
"""The KV cache on a CPU for networks whose config does not name their heads."""
_PROCESS_BYTES: Final = 1 << 30
"""Python, torch and its buffers in one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The memory of a host without a GPU, and the size of the checkpoint."""

    available_bytes: int
    weights_bytes: int


def check_settings(source: ModelSource, config: EngineConfig) -> None:
    """Raise `SettingsError` for a setting that this backend cannot apply."""
    if source.task not in ("auto", "generate"):
        raise SettingsError(
            f"task is {source.task!r}; expected auto or generate with backend vllm, which generates text only. "
            "Serve embeddings and scores with backend native.",
            name="task",
        )
    if config.dtype not in DTYPES:
        raise SettingsError(
            f"dtype is {config.dtype!r}; expected one of {', '.join(DTYPES)} with backend vllm, which does not "
            "make int8 or int4 weights at the start (quantize=dynamic_int8, bitsandbytes8 or eetq). Serve a quantized "
            "checkpoint, which it reads as it is, set quantization in vllm_args, for example fp8, or choose backend "
            "native.",
            name="dtype",
        )
    if config.kv_dtype not in ("auto", "bf16"):
        raise SettingsError(
            f"kv_dtype is {config.kv_dtype!r}; expected auto or bf16 with backend vllm. For another format set "
            "kv_cache_dtype in vllm_args, for example fp8.",
            name="kv_dtype",
        )
    if config.batch_invariant and config.device == "cpu":
        raise SettingsError(
            "batch_invariant is on, which vLLM has on GPUs only. Turn it off or choose backend native.",
            name="batch_invariant",
        )
    if config.max_lora_rank > _LORA_RANKS[-1]:
        raise SettingsError(
            f"max_lora_rank is {config.max_lora_rank}; expected at most {_LORA_RANKS[-1]} with backend vllm.",
            name="max_lora_rank",
        )


def engine_arguments(
    source: ModelSource, config: EngineConfig, model: HfModel, limits: EngineLimits, memory: HostMemory | None
) -> dict[str, Any]:
    """
    Return the arguments that the settings ask for, which `check_settings` has checked.

    `config` has a chosen device and parallelism. The KV cache is planned in `memory`; None: vLLM measures the GPU.
    """
    is_on_cpu = memory is not None
    return {
        "model": str(model.path),
        "tokenizer": str(model.path),
        "served_model_name": source.served_model_name or model.name,
        "trust_remote_code": source.trust_remote_code,
        "dtype": DTYPES[config.dtype],
        "kv_cache_dtype": "auto" if is_on_cpu or config.kv_dtype == "auto" else "bfloat16",
        "max_model_len": limits.max_model_len,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "enable_prefix_caching": limits.enable_prefix_caching,
        "tensor_parallel_size": config.tensor_parallel_size or 1,
        "enforce_eager": config.enforce_eager,
        "max_logprobs": limits.request.max_top_n_tokens,
        "logprobs_mode": "raw_logprobs",
        "structured_outputs_config": {"backend": "guidance"},
        "generation_config": "vllm",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "shutdown_timeout": _DRAIN_S,
        **({"hf_overrides": {"rope_parameters": _rope(model, source.rope)}} if source.rope else {}),
        **_memory_arguments(config, model, limits, memory),
        **(_lora_arguments(config) if config.max_loras else {}),
    }


def merge_arguments(
    arguments: Mapping[str, Any], given: Mapping[str, object], names: Collection[str]
) -> dict[str, Any]:
    """
    Return the arguments with those of the setting `vllm_args` (`given`) in place of ours.

    Raises `SettingsError` for a name that is not among the `names` that this vLLM knows, or an argument that is ours.
    """
    chosen: dict[str, Any] = {}
    for key, value in given.items():
        name = key.strip().lstrip("-").replace("-", "_")
        if name in _OWNED:
            raise SettingsError(f"vllm_args has {key}, which it may not have: {_OWNED[name]}.", name="vllm_args")
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise SettingsError(
                f"vllm_args has {key}; expected names of arguments of vLLM's engine.{hint}", name="vllm_args"
            )
        chosen[name] = _value(value)
    return {**arguments, **chosen}


def _value(value: object) -> object:
    """Parse a number, a flag or an object given as text: properties and environment variables are text."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(text.lower())
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return value


def _rope(model: HfModel, rope: Mapping[str, object] | None) -> dict[str, object]:
    stored = model.config.get("rope_parameters") or model.config.get("rope_scaling")
    base = {"rope_theta": model.config["rope_theta"]} if "rope_theta" in model.config else {}
    return {**base, **(stored if isinstance(stored, Mapping) else {}), **(rope or {})}


def _lora_arguments(config: EngineConfig) -> dict[str, Any]:
    rank = next(rank for rank in _LORA_RANKS if rank >= config.max_lora_rank)
    num = config.max_loras
    return {"enable_lora": True, "max_loras": num, "max_cpu_loras": num, "max_lora_rank": rank}


def _memory_arguments(
    config: EngineConfig, model: HfModel, limits: EngineLimits, memory: HostMemory | None
) -> dict[str, Any]:
    ranks = config.tensor_parallel_size or 1
    if config.kv_cache_bytes is not None:
        return {"kv_cache_memory_bytes": config.kv_cache_bytes // ranks}
    most_bytes = _most_kv_bytes(config, model, limits)
    if memory is None:
        share = {"gpu_memory_utilization": config.gpu_memory_utilization}
        bound = {} if config.max_kv_cache_tokens is None else {"kv_cache_memory_bytes": (most_bytes or 0) // ranks}
        return {**share, **bound}
    available_bytes = min(memory.available_bytes, config.max_memory_bytes or memory.available_bytes)
    free_bytes = int(config.gpu_memory_utilization * available_bytes) - memory.weights_bytes - ranks * _PROCESS_BYTES
    return {"kv_cache_memory_bytes": max(0, min(most_bytes or _UNKNOWN_KV_BYTES, free_bytes)) // ranks}


def _most_kv_bytes(config: EngineConfig, model: HfModel, limits: EngineLimits) -> int | None:
    """Return the size of a KV cache for all sequences, within `max_kv_cache_tokens`; None if it is not known."""
    token_bytes = kv_bytes_per_token(model)
    most_tokens = limits.max_num_seqs * limits.max_model_len
    if token_bytes is not None:
        return token_bytes * min(most_tokens, config.max_kv_cache_tokens or most_tokens)
    if config.max_kv_cache_tokens is not None:
        raise SettingsError(
            f"max_kv_cache_tokens is {config.max_kv_cache_tokens}, but the size of a token in the KV cache of "
            f"{model.name} is not known. Set kv_cache_bytes instead.",
            name="max_kv_cache_tokens",
        )
    return None


def kv_bytes_per_token(model: HfModel) -> int | None:
    """Return the bytes of keys and values of one token in 16 bits; None if the config does not name the heads."""
    config = model.config.get("text_config", model.config)
    assert isinstance(config, Mapping)

    def size(*names: str) -> int | None:
        return next((config[name] for name in names if isinstance(config.get(name), int)), None)

    layers, heads = size("num_hidden_layers", "n_layer"), size("num_attention_heads", "n_head")
    width = size("hidden_size", "n_embd")
    if layers is None or heads is None or width is None:
        return None
    kv_heads = size("num_key_value_heads") or heads
    return 2 * layers * kv_heads * (size("head_dim") or width // heads) * _HALF_BYTES
