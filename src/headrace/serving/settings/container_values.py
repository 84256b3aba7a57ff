"""
Meanings of other servers' names that convert a value, or depend on the backend or on a GPU.

`container_names.txt` says which names have them.
"""

import json
import re
from collections.abc import Callable, Mapping

from headrace.core.engine_names import ENGINES, engine_name
from headrace.core.sizes import parse_size
from headrace.serving.settings.container_meanings import (
    Converted,
    Fills,
    FillsPart,
    ForBackends,
    NoEffect,
    OnGpu,
    by_value,
)
from headrace.serving.settings.rules import read_json_object

NO_CUSTOM_CODE = NoEffect("it is for code of the model's own, and Headrace's engine serves this model")
NO_GPU = NoEffect("there is no GPU memory to manage; the KV cache is sized by kv_cache_bytes")
NO_NEURON = NoEffect("no Neuron device or compiler is used: the model runs on the CPU")
NOT_SPLIT = NoEffect(
    "one process runs the model on the CPU; it is not split over devices", ("1", "max", "auto", "false")
)

# Sizes and addresses.


def _read_megabytes(raw: str) -> Converted:
    try:
        return str(int(raw) * 1024 * 1024), ""
    except ValueError:
        raise ValueError("a whole number of megabytes") from None


def _read_bytes(raw: str) -> Converted:
    try:
        return str(parse_size(raw, minimum=1)), ""
    except ValueError:
        raise ValueError("a number of bytes") from None


def _read_grpc(raw: str) -> Converted:
    """Name the protocol of a receiver that TGI and vLLM reach by gRPC unless the URL has a path."""
    return (f"grpc://{raw.removeprefix('http://')}" if re.fullmatch(r"http://[^/]+/?", raw) else raw), ""


def if_true(text: str) -> Callable[[str], Converted]:
    """Return a converter for a flag that stands for another text; a flag that is false is left out."""
    return by_value({"true 1 on": text, "false": (None, "")}, "true or false")


def unless(remark: str, *texts: str) -> Callable[[str], Converted]:
    """Return a converter that keeps any text but some, which leave the field unset."""
    return lambda raw: (None, remark) if raw.lower() in texts else (raw, "")


BODY_BYTES = Fills("max_body_bytes", _read_bytes)
BODY_MEGABYTES = Fills("max_body_bytes", _read_megabytes)
OTLP_ENDPOINT = Fills("otlp_traces_endpoint", _read_grpc)
# Formats of weights and of the KV cache.

_FLOAT16 = "16-bit floats run as bf16 on a CPU"
_8_BIT = "8-bit weights run as w8a8"
_4_BIT = "4-bit weights run as w4a8"
_IN_CHECKPOINT = "it names the format of a checkpoint, which the checkpoint's files name too; choose with dtype"
_DTYPES: dict[str, str | Converted] = {
    "auto": "auto",
    "bf16 bfloat16": "bf16",
    "fp16 float16 half": ("bf16", _FLOAT16),
    "fp32 float32 float": ("bf16", "32-bit floats run as bf16"),
    "int8": "w8a8",
    "int4": "w4a8",
    **{name: name for name in ("w8a16", "w8a8", "w4a16", "w4a8")},
}
_QUANTIZERS: dict[str, str | Converted] = {
    "bitsandbytes bitsandbytes8 fp8 dynamic_int8 static_int8 eetq": ("w8a8", _8_BIT),
    "smoothquant": "smoothquant",
    "bitsandbytes4 bitsandbytes-nf4 bitsandbytes-fp4": ("w4a8", _4_BIT),
    "awq gptq squeezellm marlin exl2 compressed-tensors": (None, _IN_CHECKPOINT),
    "awq_marlin gptq_marlin modelopt moe_wna16 torchao": (None, _IN_CHECKPOINT),
}
_SGLANG_QUANTIZERS: dict[str, str | Converted] = {
    **_QUANTIZERS,
    "auto-round gguf modelopt_fp4 modelopt_fp8 modelslim mxfp4 mxfp8 petit_nvfp4": (None, _IN_CHECKPOINT),
    "qoq quark_int4fp8_moe w4afp8 w8a8_fp8 w8a8_int8": (None, _IN_CHECKPOINT),
}
_OURS_ALONE = ("bitsandbytes4", "bitsandbytes8", "dynamic_int8", "eetq", "exl2", "smoothquant", "static_int8")
"""Methods of TGI and LMI that vLLM does not have under these names."""


def _vllm_quantization(raw: str) -> Mapping[str, object]:
    method = raw.lower()
    return {} if method in _OURS_ALONE else {"quantization": method.partition("-nf4")[0].partition("-fp4")[0]}


DTYPE = OnGpu(
    Fills("dtype", by_value({**_DTYPES, "fp16 float16 half": "fp16", "fp32 float32 float": "fp32"})),
    Fills("dtype", by_value(_DTYPES)),
)
QUANTIZE = Fills("dtype", by_value(_QUANTIZERS), _vllm_quantization)
SGLANG_QUANTIZATION = Fills("dtype", by_value(_SGLANG_QUANTIZERS))
KV_DTYPE = Fills(
    "kv_dtype",
    by_value(
        {
            "auto": "auto",
            "bf16 bfloat16": "bf16",
            "int8": "int8",
            "fp8 fp8_e4m3 fp8_e5m2 fp8_e4m3fn": ("int8", "8-bit KV is int8 on a CPU"),
            "fp4_e2m1": ("int8", "8 bits are the fewest of the KV cache"),
        }
    ),
    lambda raw: {"kv_cache_dtype": raw.lower()},
)
# Models and formats of answers.

DOWNLOAD_DIR = Fills("cache_dir", lambda raw: (None if raw == "default" else raw, ""))
LMCACHE_FOLDER = Fills("prefix_cache_dir", lambda raw: (raw.removeprefix("file://"), ""))
LMCACHE_GIGABYTES = Fills("prefix_cache_disk_bytes", lambda raw: (f"{raw}GiB", ""))
S3_URL = Fills("model", lambda raw: (raw.removesuffix("*"), "model_id is its newer name"))
"""DJL's older name for the location of a model; s5cmd's wildcard at its end means the whole prefix."""
MODEL_LABEL = Fills(
    "model", lambda raw: (raw, "") if "/" in raw else (None, "it is a label; model_path names the model")
)
"""A Hub id; handlers also use `model_name` for a label without meaning."""
_FORMATTERS = ("json", "jsonlines", "sse", "json_chat", "jsonlines_chat", "sse_chat")


def _read_formatter(raw: str) -> Converted:
    """Accept LMI's output formatters; custom ones are code, which is never run."""
    if raw.lower() in _FORMATTERS:
        return raw, ""
    return None, f"there is no such formatter here; choose one of {', '.join(_FORMATTERS)}"


OUTPUT_FORMATTER = Fills("output_formatter", _read_formatter)
# The rotary embedding: each name gives a part of `rope_parameters` of transformers 5.

_SCALING_EXPECTED = 'a JSON object such as {"rope_type": "yarn", "factor": 4.0}, or a type such as linear'
_OVERRIDES_EXPECTED = 'a JSON object such as {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}'


def _read_scaling(raw: str) -> Mapping[str, object]:
    """Read vLLM's object, or the type alone, as TGI has it."""
    if not raw.startswith(("{", "[", '"')):
        return {"rope_type": raw.lower()}
    try:
        return _with_new_names(read_json_object(raw))
    except ValueError:
        raise ValueError(_SCALING_EXPECTED) from None


def _read_overrides(raw: str) -> Mapping[str, object]:
    """Read the rope of vLLM's overrides of a config, in the forms of transformers 4 and 5; others are refused."""
    try:
        overrides = read_json_object(raw)
    except ValueError:
        raise ValueError(_OVERRIDES_EXPECTED) from None
    nested = overrides.pop("text_config", {})
    overrides |= nested if isinstance(nested, dict) else {"text_config": nested}
    other = sorted(set(overrides) - {"rope_parameters", "rope_scaling", "rope_theta"})
    if other:
        raise ValueError(
            f"rope_parameters, rope_scaling and rope_theta only, which set the context too; remove {', '.join(other)}"
        )
    values = {key: overrides[key] for key in ("rope_theta",) if key in overrides}
    for key in ("rope_scaling", "rope_parameters"):
        part = overrides.get(key, {})
        if part is not None and not isinstance(part, dict):
            raise ValueError(_OVERRIDES_EXPECTED)
        values |= {"rope_type": "default"} if part is None else _with_new_names(part)
    if not values:
        raise ValueError(_OVERRIDES_EXPECTED)
    return values


def _with_new_names(scaling: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values with `rope_type` for the older `type`, so that parts from several names can be merged."""
    kind = {"rope_type": scaling["type"]} if "type" in scaling else {}
    return {**kind, **{key: value for key, value in scaling.items() if key != "type"}}


def _read_number(key: str) -> Callable[[str], Mapping[str, object]]:
    def read(raw: str) -> Mapping[str, object]:
        try:
            return {key: float(raw)}
        except ValueError:
            raise ValueError("a number") from None

    return read


def _read_original_context(raw: str) -> Mapping[str, object]:
    if not raw.isdecimal():
        raise ValueError("a whole number of tokens")
    return {"original_max_position_embeddings": int(raw)} if int(raw) else {}


ROPE_TYPE = FillsPart("rope", lambda raw: {"rope_type": raw.lower()}, {"factor": 1.0})
"""TGI's and LMI's type of scaling, which may come without a factor."""
GGML_ROPE_TYPE = FillsPart(
    "rope", lambda raw: {"rope_type": "default" if raw.lower() == "none" else raw.lower()}, {"factor": 1.0}
)
GGML_ROPE_CONTEXT = FillsPart("rope", _read_original_context, {})
ROPE_FACTOR = FillsPart("rope", _read_number("factor"), {"rope_type": "linear"})
"""TGI's and LMI's factor, which means linear scaling unless another name says otherwise."""
ROPE_THETA = FillsPart("rope", _read_number("rope_theta"), {})
HF_OVERRIDES = FillsPart("rope", _read_overrides, {})
WHOLE_ROPE = FillsPart("rope", read_json_object, {})
ROPE_SCALING = FillsPart("rope", _read_scaling, {})
ROPE_FLAGS = {
    "rope_scaling": ROPE_SCALING,
    "rope_theta": ROPE_THETA,
    "hf_overrides": HF_OVERRIDES,
}
"""vLLM's flags, which `headrace serve` has too."""

# Engines, drafts, parallelism, and arguments of vLLM: what depends on the backend or on a GPU.

_VLLM = ("vllm",)
ONLY_VLLM = NoEffect("it is an argument of vLLM, which does not serve")


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


def vllm_argument(*path: str, otherwise: NoEffect = ONLY_VLLM) -> ForBackends:
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

_LIMITS = (
    "async_scheduling block_size calculate_kv_scales config_format cpu_offload_gb disable_custom_all_reduce "
    "disable_sliding_window enable_expert_parallel fully_sharded_loras kv_cache_dtype kv_cache_memory_bytes "
    "load_format lora_dtype max_cpu_loras model_impl num_gpu_blocks_override optimization_level "
    "pipeline_parallel_size quantization safetensors_load_strategy scheduling_policy seed"
)
VLLM_LIMITS = frozenset(_LIMITS.split())
"""Arguments of vLLM's engine that are formats and limits: they name no path, no other model and no code."""
