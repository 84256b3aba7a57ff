"""Conversion of values under other servers' names, and the meanings that several names share."""

import re
from collections.abc import Callable, Mapping

from headrace.core.sizes import parse_size
from headrace.serving.settings.container_meanings import (
    Converted,
    Fills,
    FillsPart,
    NoEffect,
    OnGpu,
    Requires,
    by_value,
)
from headrace.serving.settings.rules import read_json_object

ALWAYS = NoEffect("it is always on", ("true", "1"))
COMPILER = NoEffect("it tunes a compiler or kernels that are not used here")
LORA_TUNING = NoEffect("all loaded adapters stay in memory, in bf16", ("false", "0"))
METRICS = NoEffect("metrics are on /metrics", ("true",))
NO_CUSTOM_CODE = NoEffect("it is for code of the model's own, and Headrace's engine serves this model")
NO_DRAFT_MODEL = NoEffect("there are no draft models; max_draft_tokens sets prompt lookup", ("0",))
NO_GPU = NoEffect("there is no GPU memory to manage; the KV cache is sized by kv_cache_bytes")
NO_LOAD_TIMEOUT = NoEffect("loading has no time limit and shows its progress")
NO_NEURON = NoEffect("no Neuron device or compiler is used: the model runs on the CPU")
NO_SESSIONS = NoEffect("sessions are not kept by this version", ("false", "0"))
NO_TIMEOUT = NoEffect("requests have no time limit; a client that disconnects ends its request")
NO_WORKERS = NoEffect("one process serves all requests", ("1",))
NOT_SPLIT = NoEffect(
    "one process runs the model on the CPU; it is not split over devices", ("1", "max", "auto", "false")
)
OWN_TOKENIZER = NoEffect("the tokenizer of the model is used", ("auto",))
PARSERS = NoEffect("the model's chat template determines how tool calls and reasoning are recognised")
TLS = NoEffect("TLS is set by `--tls-cert` and `--tls-key`")
ENTRY_POINT = Requires(
    (
        *("djl_python.huggingface", "djl_python.deepspeed", "djl_python.fastertransformer"),
        *("djl_python.lmi_trtllm.trtllm_async_service", "djl_python.lmi_vllm.vllm_async_service"),
        *("djl_python.tensorrt_llm", "djl_python.tensorrt_llm_python", "djl_python.transformers_neuronx"),
    ),
    "These values generate text, as Headrace's engine does, which serves this model. Remove it, or name a file in "
    "the model's folder.",
)

# Sizes, lengths and logs.


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


def _read_length(raw: str) -> Converted:
    return (None, "0 and -1 mean the model's own") if raw.lower() in ("0", "-1", "auto") else (raw, "")


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
MAX_MODEL_LEN = Fills("max_model_len", _read_length)
MAX_PROMPT_TOKENS = Fills("max_prompt_tokens", _read_length)
OTLP_ENDPOINT = Fills("otlp_traces_endpoint", _read_grpc)
JSON_LOG = Fills("log_format", by_value({"true": "json", "false": "console", "1": "json"}, "true or false"))
LOG_NUMBER = Fills(
    "log_level",
    by_value({"10": "debug", "20": "info", "30": "warning", "40 50": "error"}, "10, 20, 30, 40 or 50"),
)
LOG_LEVEL = Fills(
    "log_level",
    by_value(
        {
            **{name: name for name in ("debug", "info", "warning", "error")},
            "warn": "warning",
            "critical": "error",
            "trace": "debug",
        },
        "debug, info, warning or error",
    ),
)

# Formats of weights and of the KV cache.

_FLOAT16 = "16-bit floats run as bf16 on a CPU"
_8_BIT = "8-bit weights run as w8a8"
_4_BIT = "4-bit weights run as w4a8"
_8_BIT_KV = "8 bits are the fewest of the KV cache"
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
            "fp4_e2m1": ("int8", _8_BIT_KV),
        }
    ),
    lambda raw: {"kv_cache_dtype": raw.lower()},
)
GGML_KV_TYPE = Fills(
    "kv_dtype",
    by_value({"f32 f16 bf16": "bf16", "q8_0": "int8", "q4_0 q4_1 iq4_nl q5_0 q5_1": ("int8", _8_BIT_KV)}),
)

# Tasks and formats of answers.

_FORMATTERS = ("json", "jsonlines", "sse", "json_chat", "jsonlines_chat", "sse_chat")


def _read_formatter(raw: str) -> Converted:
    """Accept LMI's output formatters; custom ones are code, which is never run."""
    if raw.lower() in _FORMATTERS:
        return raw, ""
    return None, f"there is no such formatter here; choose one of {', '.join(_FORMATTERS)}"


OUTPUT_FORMATTER = Fills("output_formatter", _read_formatter)
TASK = Fills(
    "task",
    by_value(
        {
            "auto": "auto",
            "generate text-generation conversational": "generate",
            "embed embedding text-embedding text_embedding sentence-similarity sentence-embeddings": "embed",
            "score reward classify rerank reranking text-ranking text-classification sentiment-analysis": "score",
            "feature-extraction": "features",
        }
    ),
)
RUNNER = Fills("task", by_value({"auto": "auto", "generate": "generate", "pooling": "embed"}))
CONVERT = Fills("task", by_value({"auto none": "auto", "embed": "embed", "classify": "score"}))
POOLING = Fills(
    "pooling",
    by_value(
        {"cls": "cls", "mean": "mean", "last last-token last_token lasttoken": "last"}, "one of cls, mean, last-token"
    ),
)
_UNPOOLED = (None, "the model's files and task say how vectors are pooled")
GGML_POOLING = Fills(
    "pooling", by_value({"none": _UNPOOLED, "mean": "mean", "cls": "cls", "last": "last", "rank": _UNPOOLED})
)

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
ROPE_FLAGS = {
    "rope_scaling": FillsPart("rope", _read_scaling, {}),
    "rope_theta": ROPE_THETA,
    "hf_overrides": HF_OVERRIDES,
}
"""vLLM's flags, which `headrace serve` has too."""
