"""
Meanings of foreign settings: how values are converted, and why some have no effect.

A name sets a field (`Fills`) or a part of one (`FillsPart`), has no effect (`NoEffect`, with the reason), is refused
unless its value asks for the default behaviour (`Requires`), or is read by a library (`UsedElsewhere`). Its meaning may
differ between backends (`ForBackends`) and between hosts with and without a GPU (`OnGpu`).
The tables `container_options`, `container_model_config` and `container_env` consist of these.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headrace.core.sizes import parse_size
from headrace.settings.engine_names import ENGINES, engine_name
from headrace.settings.rules import read_json_object

Converted = tuple[str | None, str]
"""The text for the field (None: leave the field unset) and a remark for the notice, which may be empty."""


def _same(raw: str) -> Converted:
    return raw, ""


@dataclass(frozen=True, slots=True)
class Fills:
    """The name sets a field of `ServerSettings`."""

    field: str
    convert: Callable[[str], Converted] = _same
    vllm: Callable[[str], Mapping[str, object]] | None = None
    """Returns the arguments of vLLM's engine that the text means, which count in place of the field if vLLM serves."""


@dataclass(frozen=True, slots=True)
class FillsPart:
    """The name sets some keys of a field that is a JSON object; several names may set keys of the same one."""

    field: str
    convert: Callable[[str], Mapping[str, object]]
    """Raises `ValueError` with what is expected."""
    defaults: Mapping[str, object]
    """Keys that no other name needs to set."""


@dataclass(frozen=True, slots=True)
class NoEffect:
    """The name is accepted without effect; `quiet` values, which ask for the default behaviour, get no notice."""

    why: str
    quiet: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Requires:
    """The name is accepted with values that ask for the default behaviour; any other value stops the start."""

    values: tuple[str, ...]
    """In lower case."""
    why: str
    """A sentence that says what the server does, and what to do instead."""


@dataclass(frozen=True, slots=True)
class UsedElsewhere:
    """A library reads the name itself."""

    by: str


@dataclass(frozen=True, slots=True)
class ForBackends:
    """The name counts if one of some backends serves, and has no effect otherwise."""

    backends: tuple[str, ...]
    meaning: Fills | FillsPart
    otherwise: NoEffect


@dataclass(frozen=True, slots=True)
class OnGpu:
    """The name has one meaning on a GPU and another on a CPU."""

    gpu: "Meaning"
    cpu: "Meaning"


Meaning = Fills | FillsPart | NoEffect | Requires | UsedElsewhere | ForBackends | OnGpu


def parts_of(meaning: Meaning) -> Iterator[Fills | FillsPart]:
    """Yield the fields that a name sets, on any host and for any backend."""
    match meaning:
        case OnGpu():
            yield from parts_of(meaning.gpu)
            yield from parts_of(meaning.cpu)
        case ForBackends():
            yield meaning.meaning
        case Fills() | FillsPart():
            yield meaning


def sets_model(meaning: Meaning) -> bool:
    """Return whether a name names the model."""
    return isinstance(meaning, Fills) and meaning.field == "model"


def by_value(expected: str, values: Mapping[str, Converted]) -> Callable[[str], Converted]:
    """Return a converter that looks up the value; its error for an unknown one is `expected`."""

    def convert(raw: str) -> Converted:
        converted = values.get(raw.lower())
        if converted is None:
            raise ValueError(expected)
        return converted

    return convert


def read_megabytes(raw: str) -> Converted:
    """Convert a number of MiB to bytes."""
    try:
        return str(int(raw) * 1024 * 1024), ""
    except ValueError:
        raise ValueError("a whole number of megabytes") from None


def read_bytes(raw: str) -> Converted:
    """Convert a number of bytes, with or without a unit."""
    try:
        return str(parse_size(raw, minimum=1)), ""
    except ValueError:
        raise ValueError("a number of bytes") from None


_FORMATTERS = ("json", "jsonlines", "sse", "json_chat", "jsonlines_chat", "sse_chat")


def read_formatter(raw: str) -> Converted:
    """Accept LMI's output formatters; custom ones are code, which is never run."""
    if raw.lower() in _FORMATTERS:
        return raw, ""
    return None, f"there is no such formatter here; choose one of {', '.join(_FORMATTERS)}"


def read_speculative_config(raw: str) -> Converted:
    """Return the number of draft tokens if vLLM's method is `ngram`; other methods have no counterpart here."""
    expected = 'a JSON object as {"method": "ngram", "num_speculative_tokens": 5}'
    try:
        config = json.loads(raw)
        if "ngram" not in (config.get("method"), str(config.get("model")).strip("[]")):
            return None, "there are no draft models in this version; draft tokens come from prompt lookup"
        return str(int(config["num_speculative_tokens"])), ""
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
        raise ValueError(expected) from None


def read_vllm_speculation(raw: str) -> Mapping[str, object]:
    """Return vLLM's argument for its own `speculative_config`."""
    return {"speculative_config": read_json_object(raw)}


def read_vllm_lookup(raw: str) -> Mapping[str, object]:
    """Return vLLM's argument for a number of draft tokens from prompt lookup."""
    if not raw.isdecimal() or not int(raw):
        return {}
    return {"speculative_config": {"method": "ngram", "num_speculative_tokens": int(raw), "prompt_lookup_max": 4}}


def read_engine(raw: str) -> Converted:
    """Accept LMI's names of engines; `auto` leaves it to weaker sources, such as the image."""
    try:
        name = engine_name(raw)
    except ValueError:
        raise ValueError(f"one of {', '.join(ENGINES)}") from None
    return (None if name == "auto" else name), ENGINES[name].remark


_CONTEXT_REMARK = "0 and -1 mean the model's own"


def _length(raw: str) -> Converted:
    return (None, _CONTEXT_REMARK) if raw.lower() in ("0", "-1", "auto") else (raw, "")


_FLOAT16 = "16-bit floats run as bf16 on a CPU"
_DTYPES: dict[str, Converted] = {
    "auto": ("auto", ""),
    "bf16": ("bf16", ""),
    "bfloat16": ("bf16", ""),
    "fp16": ("bf16", _FLOAT16),
    "float16": ("bf16", _FLOAT16),
    "half": ("bf16", _FLOAT16),
    "fp32": ("bf16", "32-bit floats run as bf16"),
    "float32": ("bf16", "32-bit floats run as bf16"),
    "float": ("bf16", "32-bit floats run as bf16"),
    "int8": ("w8a8", ""),
    "int4": ("w4a8", ""),
    **{name: (name, "") for name in ("w8a16", "w8a8", "w4a16", "w4a8")},
}
_GPU_DTYPES: dict[str, Converted] = {
    **_DTYPES,
    **dict.fromkeys(("fp16", "float16", "half"), ("fp16", "")),
    **dict.fromkeys(("fp32", "float32", "float"), ("fp32", "")),
}
_8_BIT = "8-bit weights run as w8a8"
_4_BIT = "4-bit weights run as w4a8"
IN_CHECKPOINT = "it names the format of a checkpoint, which the checkpoint's files name too; choose with dtype"
QUANTIZERS: dict[str, Converted] = {
    **dict.fromkeys(("bitsandbytes", "bitsandbytes8", "fp8", "dynamic_int8", "static_int8", "eetq"), ("w8a8", _8_BIT)),
    "smoothquant": ("smoothquant", ""),
    **dict.fromkeys(("bitsandbytes4", "bitsandbytes-nf4", "bitsandbytes-fp4"), ("w4a8", _4_BIT)),
    **dict.fromkeys(("awq", "gptq", "squeezellm", "marlin", "exl2", "compressed-tensors"), (None, IN_CHECKPOINT)),
    **dict.fromkeys(("awq_marlin", "gptq_marlin", "modelopt", "moe_wna16", "torchao"), (None, IN_CHECKPOINT)),
}
_OURS_ALONE = ("bitsandbytes4", "bitsandbytes8", "dynamic_int8", "eetq", "exl2", "smoothquant", "static_int8")
"""Methods of TGI and LMI that vLLM does not have under these names."""


def read_vllm_quantization(raw: str) -> Mapping[str, object]:
    """Return vLLM's argument for a method, or none if vLLM does not have it."""
    method = raw.lower()
    return {} if method in _OURS_ALONE else {"quantization": method.partition("-nf4")[0].partition("-fp4")[0]}


_KV_DTYPES: dict[str, Converted] = {
    "auto": ("auto", ""),
    "bf16": ("bf16", ""),
    "bfloat16": ("bf16", ""),
    "int8": ("int8", ""),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3fn"), ("int8", "8-bit KV is int8 on a CPU")),
    "fp4_e2m1": ("int8", "8 bits are the fewest of the KV cache"),
}
LOG_LEVELS: dict[str, Converted] = {
    "10": ("debug", ""),
    "20": ("info", ""),
    "30": ("warning", ""),
    "40": ("error", ""),
    "50": ("error", ""),
}

_EXPECTED_DTYPE = f"one of {', '.join(_DTYPES)}"
DTYPE = OnGpu(
    Fills("dtype", by_value(_EXPECTED_DTYPE, _GPU_DTYPES)), Fills("dtype", by_value(_EXPECTED_DTYPE, _DTYPES))
)
QUANTIZE = Fills("dtype", by_value(f"one of {', '.join(QUANTIZERS)}", QUANTIZERS), read_vllm_quantization)
KV_DTYPE = Fills(
    "kv_dtype", by_value(f"one of {', '.join(_KV_DTYPES)}", _KV_DTYPES), lambda raw: {"kv_cache_dtype": raw.lower()}
)
ROLLING_BATCH = Fills("rolling_batch", read_engine)
MAX_MODEL_LEN = Fills("max_model_len", _length)
MAX_PROMPT_TOKENS = Fills("max_prompt_tokens", _length)
MAX_DRAFT_TOKENS = Fills("max_draft_tokens", vllm=read_vllm_lookup)
SPECULATIVE_CONFIG = Fills("max_draft_tokens", read_speculative_config, read_vllm_speculation)

NOT_SPLIT = NoEffect(
    "one process runs the model on the CPU; it is not split over devices", ("1", "max", "auto", "false")
)
NO_GPU = NoEffect("there is no GPU memory to manage; the KV cache is sized by kv_cache_bytes")
NO_NEURON = NoEffect("no Neuron device or compiler is used: the model runs on the CPU")
_TASKS: dict[str, Converted] = {
    "auto": ("auto", ""),
    **dict.fromkeys(("generate", "text-generation", "conversational"), ("generate", "")),
    **dict.fromkeys(
        ("embed", "embedding", "text-embedding", "text_embedding", "sentence-similarity", "sentence-embeddings"),
        ("embed", ""),
    ),
    **dict.fromkeys(
        (
            *("score", "reward", "classify", "rerank", "reranking", "text-ranking"),
            *("text-classification", "sentiment-analysis"),
        ),
        ("score", ""),
    ),
    "feature-extraction": ("features", ""),
}
TASK = Fills("task", by_value(f"one of {', '.join(_TASKS)}", _TASKS))
POOLING = Fills(
    "pooling",
    by_value(
        "one of cls, mean, last-token",
        {
            "cls": ("cls", ""),
            "mean": ("mean", ""),
            **dict.fromkeys(("last", "last-token", "last_token", "lasttoken"), ("last", "")),
        },
    ),
)
_RUNNERS: dict[str, Converted] = {"auto": ("auto", ""), "generate": ("generate", ""), "pooling": ("embed", "")}
RUNNER = Fills("task", by_value("one of auto, generate, pooling", _RUNNERS))
_CONVERSIONS: dict[str, Converted] = {
    **dict.fromkeys(("auto", "none"), ("auto", "")),
    "embed": ("embed", ""),
    "classify": ("score", ""),
}
CONVERT = Fills("task", by_value("one of auto, none, embed, classify", _CONVERSIONS))
NO_CUSTOM_CODE = NoEffect("it is for code of the model's own, and Headrace's engine serves this model")
NO_TIMEOUT = NoEffect("requests have no time limit; a client that disconnects ends its request")
NO_LOAD_TIMEOUT = NoEffect("loading has no time limit and shows its progress")
NO_WORKERS = NoEffect("one process serves all requests", ("1",))
LORA_TUNING = NoEffect("all loaded adapters stay in memory, in bf16", ("false", "0"))
NO_DRAFT_MODEL = NoEffect("there are no draft models; max_draft_tokens sets prompt lookup", ("0",))
NO_SESSIONS = NoEffect("sessions are not kept by this version", ("false", "0"))
COMPILER = NoEffect("it tunes a compiler or kernels that are not used here")
ALWAYS = NoEffect("it is always on", ("true", "1"))
PARSERS = NoEffect("the model's chat template determines how tool calls and reasoning are recognised")
CACHED_ANSWERS = NoEffect("answers are streamed and not kept")


def _read_grpc(raw: str) -> Converted:
    """Name the protocol of a receiver that TGI and vLLM reach by gRPC unless the URL has a path."""
    return (f"grpc://{raw.removeprefix('http://')}" if re.fullmatch(r"http://[^/]+/?", raw) else raw), ""


OTLP_ENDPOINT = Fills("otlp_traces_endpoint", _read_grpc)
