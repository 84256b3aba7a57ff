"""
Meanings of the flags of SGLang and llama.cpp: `SM_SGLANG_<FLAG>` and `SM_LLAMA_CPP_<FLAG>` in AWS's containers.

Sources: `scripts/docker/{sglang,llama_cpp}/sagemaker_entrypoint.sh` of aws/deep-learning-containers, SGLang's
`docs/advanced_features/server_arguments.md`, llama.cpp's `tools/server/README.md`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from headrace.settings.container_backends import (
    BLOCK_SIZE,
    CPU_OFFLOAD,
    ENFORCE_EAGER,
    GPU_MEMORY,
    LOAD_FORMAT,
    PIPELINE_PARALLEL,
    SEED,
    TENSOR_PARALLEL,
    TRUST_REMOTE_CODE,
    vllm_argument,
)
from headrace.settings.container_meanings import (
    ALWAYS,
    COMPILER,
    DTYPE,
    IN_CHECKPOINT,
    KV_DTYPE,
    LORA_TUNING,
    MAX_MODEL_LEN,
    NO_CUSTOM_CODE,
    NO_DRAFT_MODEL,
    NO_LOAD_TIMEOUT,
    NO_TIMEOUT,
    NO_WORKERS,
    NOT_SPLIT,
    OTLP_ENDPOINT,
    PARSERS,
    QUANTIZERS,
    Converted,
    Fills,
    FillsPart,
    Meaning,
    NoEffect,
    by_value,
)
from headrace.settings.container_options import VLLM
from headrace.settings.rope_names import HF_OVERRIDES, ROPE_FACTOR, ROPE_THETA

_LOGS = NoEffect("see log_level and log_format")
_METRICS = NoEffect("metrics are on /metrics", ("true",))
_NO_PROMPT_LOG = NoEffect("prompts are logged if log_prompts is on", ("false",))
_OWN_TOKENIZER = NoEffect("the tokenizer of the model is used", ("auto",))
_TEXT_ONLY = NoEffect("prompts are text only")
_ONE_SERVER = NoEffect("the server serves one model")
_TLS = NoEffect("TLS is set by `--tls-cert` and `--tls-key`")
_NO_WARM_UP = NoEffect("the server is ready when the model is loaded")
_STREAMS = NoEffect("every token is streamed at once", ("1", "-1"))
_ARRIVAL = NoEffect("requests run in the order of their arrival", ("fcfs",))
_REQUESTS = NoEffect("it is a field of each request; see generation_config for defaults")
_ONE_DEVICE = NoEffect("one device runs the whole model; see device")
_MAPPED = NoEffect("weights are packed once and mapped from the disk")
_CORES = NoEffect("see threads")
_GGUF_LORA = NoEffect("adapters are folders that PEFT wrote; see adapter")
_NO_SLOTS = NoEffect("prompts with equal beginnings share their KV cache; see enable_prefix_caching")


def _all(meaning: Meaning, *names: str) -> dict[str, Meaning]:
    return dict.fromkeys(names, meaning)


def _if_true(text: str) -> Callable[[str], Converted]:
    """Return a converter for a flag that stands for another text; a flag that is false is left out."""
    return by_value("true or false", {**dict.fromkeys(("true", "1", "on"), (text, "")), "false": (None, "")})


def _unless(remark: str, *texts: str) -> Callable[[str], Converted]:
    """Return a converter that keeps any text but some, which leave the field unset."""
    return lambda raw: (None, remark) if raw.lower() in texts else (raw, "")


def _read_layers(raw: str) -> Converted:
    """Return the CPU if no layer is offloaded to a GPU."""
    return ("cpu", "") if raw == "0" else (None, "")


def _read_scaling(raw: str) -> Mapping[str, object]:
    return {"rope_type": "default" if raw.lower() == "none" else raw.lower()}


def _read_original_context(raw: str) -> Mapping[str, object]:
    if not raw.isdecimal():
        raise ValueError("a whole number of tokens")
    return {"original_max_position_embeddings": int(raw)} if int(raw) else {}


_LEVELS: Final = by_value(
    "debug, info, warning or error",
    {
        **{name: (name, "") for name in ("debug", "info", "warning", "error")},
        "warn": ("warning", ""),
        "critical": ("error", ""),
        "trace": ("debug", ""),
    },
)
_DEVICES: Final = by_value(
    "one of cuda, cpu, xpu, hpu, npu",
    {
        "cuda": ("cuda", ""),
        "cpu": ("cpu", ""),
        **dict.fromkeys(("xpu", "hpu", "npu"), (None, "there is no such device here")),
    },
)
_SGLANG_QUANTIZERS: Final[dict[str, Converted]] = {
    **QUANTIZERS,
    **dict.fromkeys(
        (
            *("auto-round", "gguf", "modelopt_fp4", "modelopt_fp8", "modelslim", "mxfp4", "mxfp8", "petit_nvfp4"),
            *("qoq", "quark_int4fp8_moe", "w4afp8", "w8a8_fp8", "w8a8_int8"),
        ),
        (None, IN_CHECKPOINT),
    ),
}

SGLANG: dict[str, Meaning] = {
    "model_path": Fills("model"),
    "model": Fills("model"),
    "revision": Fills("revision"),
    "served_model_name": Fills("served_model_name"),
    "host": Fills("host"),
    "port": Fills("port"),
    "api_key": Fills("api_key"),
    "quantization": Fills("dtype", by_value(f"one of {', '.join(_SGLANG_QUANTIZERS)}", _SGLANG_QUANTIZERS)),
    "dtype": DTYPE,
    "kv_cache_dtype": KV_DTYPE,
    "context_length": MAX_MODEL_LEN,
    "max_running_requests": Fills("max_num_seqs"),
    "max_total_tokens": Fills("max_kv_cache_tokens"),
    "chunked_prefill_size": Fills("max_num_batched_tokens", _unless("prompts are always read in chunks", "-1")),
    "max_queued_requests": NoEffect("running and waiting requests have one limit: max_concurrent_requests"),
    "is_embedding": Fills("task", _if_true("embed")),
    "device": Fills("device", _DEVICES),
    "log_level": Fills("log_level", _LEVELS),
    "chat_template": Fills("chat_template"),
    "sampling_defaults": Fills(
        "generation_config", by_value("model or openai", {"model": ("auto", ""), "openai": ("vllm", "")})
    ),
    "disable_radix_cache": Fills("enable_prefix_caching", _if_true("false")),
    "disable_cuda_graph": ENFORCE_EAGER,
    "enable_deterministic_inference": Fills("batch_invariant", _if_true("true")),
    "download_dir": Fills("cache_dir"),
    "otlp_traces_endpoint": OTLP_ENDPOINT,
    "enable_trace": NoEffect("spans are sent if otlp_traces_endpoint is set", ("true",)),
    "enable_lora": Fills("enable_lora"),
    "lora_paths": Fills("adapter"),
    "max_loras_per_batch": Fills("max_loras"),
    "max_lora_rank": Fills("max_lora_rank"),
    "json_model_override_args": HF_OVERRIDES,
    "trust_remote_code": TRUST_REMOTE_CODE,
    "load_format": LOAD_FORMAT,
    "model_impl": vllm_argument("model_impl"),
    "mem_fraction_static": GPU_MEMORY,
    "cpu_offload_gb": CPU_OFFLOAD,
    "page_size": BLOCK_SIZE,
    "random_seed": SEED,
    **_all(TENSOR_PARALLEL, "tp", "tp_size", "tensor_parallel_size"),
    **_all(PIPELINE_PARALLEL, "pp", "pp_size", "pipeline_parallel_size"),
    **_all(NOT_SPLIT, "dp", "dp_size", "data_parallel_size", "ep", "ep_size", "expert_parallel_size"),
    **_all(NOT_SPLIT, "nnodes", "node_rank", "dist_init_addr", "nccl_init_addr", "nccl_port", "dist_timeout"),
    **_all(NOT_SPLIT, "enable_dp_attention", "load_balance_method", "base_gpu_id", "gpu_id_step", "enable_p2p_check"),
    **_all(NOT_SPLIT, "disaggregation_mode", "moe_dp_size", "attn_cp_size"),
    **_all(_OWN_TOKENIZER, "tokenizer_path", "tokenizer_mode", "skip_tokenizer_init", "hf_chat_template_name"),
    **_all(NO_WORKERS, "tokenizer_worker_num"),
    **_all(_TEXT_ONLY, "enable_multimodal"),
    **_all(PARSERS, "reasoning_parser", "tool_call_parser"),
    **_all(NO_CUSTOM_CODE, "model_loader_extra_config", "warmups", "custom_sigquit_handler", "tool_server"),
    **_all(NO_TIMEOUT, "soft_watchdog_timeout"),
    "watchdog_timeout": NoEffect("see step_timeout_s, which is for vLLM"),
    **_all(_NO_WARM_UP, "skip_server_warmup"),
    **_all(_STREAMS, "stream_interval", "stream_output", "incremental_streaming_output"),
    **_all(_ARRIVAL, "schedule_policy", "schedule_conservativeness", "enable_priority_scheduling"),
    "max_prefill_tokens": NoEffect("chunked_prefill_size sets the token budget of a step"),
    "prefill_max_requests": NoEffect("chunked_prefill_size sets the token budget of a step"),
    "radix_eviction_policy": NoEffect("the least recently used blocks go first", ("lru",)),
    **_all(_NO_PROMPT_LOG, "log_requests", "log_requests_level", "log_requests_format", "log_requests_target"),
    **_all(_LOGS, "log_level_http", "decode_log_interval", "show_time_cost", "enable_request_time_stats_logging"),
    **_all(_METRICS, "enable_metrics", "enable_metrics_for_all_schedulers", "enable_mfu_metrics"),
    **_all(_METRICS, "export_metrics_to_file", "export_metrics_to_file_dir", "collect_tokens_histogram"),
    "enable_cache_report": ALWAYS,
    "admin_api_key": NoEffect("there is one key; see api_key"),
    "preferred_sampling_params": NoEffect("see generation_config"),
    **_all(COMPILER, "attention_backend", "prefill_attention_backend", "decode_attention_backend", "sampling_backend"),
    **_all(COMPILER, "grammar_backend", "enable_torch_compile", "torch_compile_max_bs", "torchao_config"),
    **_all(COMPILER, "cuda_graph_bs", "cuda_graph_max_bs", "disable_cuda_graph_padding", "disable_overlap_schedule"),
    **_all(
        COMPILER, "disable_custom_all_reduce", "disable_piecewise_cuda_graph", "enable_mixed_chunk", "moe_a2a_backend"
    ),
    **_all(COMPILER, "moe_runner_backend", "fp8_gemm_backend", "mm_attention_backend", "enable_fp32_lm_head"),
    **_all(COMPILER, "swa_full_tokens_ratio", "disable_hybrid_swa_memory", "triton_attention_num_kv_splits"),
    "quantization_param_path": VLLM["quantization_param_path"],
    **_all(LORA_TUNING, "lora_backend", "lora_target_modules", "max_loaded_loras", "lora_eviction_policy"),
    **_all(NO_DRAFT_MODEL, "speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps"),
    **_all(NO_DRAFT_MODEL, "speculative_eagle_topk", "speculative_num_draft_tokens", "speculative_attention_mode"),
    **_all(_TLS, "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_keyfile_password"),
}
"""`SM_SGLANG_<FLAG>`: SGLang's flags."""

_KV_TYPES: Final[dict[str, Converted]] = {
    **dict.fromkeys(("f32", "f16", "bf16"), ("bf16", "")),
    "q8_0": ("int8", ""),
    **dict.fromkeys(("q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"), ("int8", "8 bits are the fewest of the KV cache")),
}
_KV_TYPE = Fills("kv_dtype", by_value(f"one of {', '.join(_KV_TYPES)}", _KV_TYPES))
_THREADS = Fills("threads", _unless("", "-1", "0"))
_MOST_TOKENS = Fills("default_max_new_tokens", _unless("the answer ends with the context", "-1", "-2"))

LLAMA_CPP: dict[str, Meaning] = {
    "model": Fills("model"),
    "hf_repo": Fills("model"),
    "model_dir": Fills("model"),
    "alias": Fills("served_model_name"),
    "host": Fills("host"),
    "port": Fills("port"),
    "api_key": Fills("api_key"),
    "ctx_size": MAX_MODEL_LEN,
    "parallel": Fills("max_num_seqs", _unless("", "-1", "0")),
    "ubatch_size": Fills("max_num_batched_tokens"),
    "batch_size": NoEffect("ubatch_size sets the token budget of a step"),
    **_all(_MOST_TOKENS, "n_predict", "predict"),
    **_all(_THREADS, "threads"),
    **_all(_KV_TYPE, "cache_type_k", "cache_type_v"),
    **_all(Fills("task", _if_true("embed")), "embedding", "embeddings"),
    **_all(Fills("task", _if_true("score")), "reranking", "rerank"),
    "pooling": Fills(
        "pooling",
        by_value(
            "one of none, mean, cls, last, rank",
            {
                **{name: (name, "") for name in ("mean", "cls", "last")},
                **dict.fromkeys(("none", "rank"), (None, "the model's files and task say how vectors are pooled")),
            },
        ),
    ),
    **_all(Fills("chat_template"), "chat_template", "chat_template_file"),
    "rope_scaling": FillsPart("rope", _read_scaling, {"factor": 1.0}),
    "rope_scale": ROPE_FACTOR,
    "rope_freq_base": ROPE_THETA,
    "yarn_orig_ctx": FillsPart("rope", _read_original_context, {}),
    **_all(Fills("device", _read_layers), "n_gpu_layers", "gpu_layers"),
    "cors_origins": Fills("cors_allow_origins"),
    "cache_prompt": Fills("enable_prefix_caching"),
    "no_cache_prompt": Fills("enable_prefix_caching", _if_true("false")),
    **_all(Fills("web", _if_true("false")), "no_webui", "no_ui"),
    **_all(Fills("web"), "webui", "ui"),
    "verbose": Fills("log_level", _if_true("debug")),
    "log_jsonl": Fills("log_format", _if_true("json")),
    "seed": SEED,
    "hf_file": NoEffect("it is a file of the repository that SM_LLAMA_CPP_HF_REPO names"),
    "hf_token": NoEffect("set HF_TOKEN"),
    "model_url": NoEffect("name a file, a Hub id or an s3:// prefix in SM_LLAMA_CPP_MODEL"),
    "offline": NoEffect("set HF_HUB_OFFLINE"),
    **_all(NO_LOAD_TIMEOUT, "no_warmup", "warmup"),
    **_all(NO_TIMEOUT, "timeout", "sse_ping_interval"),
    **_all(ALWAYS, "cont_batching", "jinja", "metrics"),
    **_all(NoEffect("continuous batching is always on", ("false",)), "no_cont_batching"),
    **_all(NoEffect("chat templates are always Jinja", ("false",)), "no_jinja"),
    **_all(PARSERS, "reasoning_format", "reasoning_budget", "reasoning", "reasoning_effort", "chat_template_kwargs"),
    **_all(_CORES, "threads_batch", "threads_http", "cpu_mask", "cpu_range", "cpu_strict", "prio", "poll", "numa"),
    **_all(
        _ONE_DEVICE, "device", "override_tensor", "n_cpu_moe", "cpu_moe", "op_offload", "kv_offload", "no_kv_offload"
    ),
    **_all(NOT_SPLIT, "split_mode", "tensor_split", "main_gpu", "rpc"),
    **_all(COMPILER, "flash_attn", "no_flash_attn", "swa_full", "fit", "fit_ctx", "fit_target", "defrag_thold"),
    **_all(COMPILER, "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast"),
    **_all(_MAPPED, "mlock", "mmap", "no_mmap", "load_mode", "repack", "no_repack", "check_tensors", "direct_io"),
    **_all(_GGUF_LORA, "lora", "lora_scaled", "lora_init_without_apply", "control_vector", "control_vector_scaled"),
    **_all(_TEXT_ONLY, "mmproj", "mmproj_url", "no_mmproj", "image_min_tokens", "image_max_tokens"),
    **_all(_NO_SLOTS, "slots", "no_slots", "slot_save_path", "slot_prompt_similarity", "cache_reuse", "cache_ram"),
    **_all(_NO_SLOTS, "kv_unified", "no_kv_unified", "ctx_checkpoints", "swa_checkpoints"),
    **_all(NoEffect("the context is not shifted", ("false",)), "context_shift", "keep"),
    "no_context_shift": ALWAYS,
    **_all(
        NO_DRAFT_MODEL, "model_draft", "draft", "draft_max", "draft_min", "draft_p_min", "hf_repo_draft", "spec_type"
    ),
    **_all(_REQUESTS, "temp", "temperature", "top_k", "top_p", "min_p", "typical", "repeat_penalty", "repeat_last_n"),
    **_all(_REQUESTS, "presence_penalty", "frequency_penalty", "samplers", "ignore_eos", "logit_bias", "mirostat"),
    **_all(_REQUESTS, "grammar", "grammar_file", "json_schema", "json_schema_file", "reverse_prompt", "special"),
    **_all(
        _LOGS, "verbosity", "log_verbosity", "log_file", "log_disable", "log_colors", "log_prefix", "log_timestamps"
    ),
    **_all(_ONE_SERVER, "models_dir", "models_preset", "models_max", "models_autoload", "api_prefix", "path", "props"),
    **_all(NoEffect("tools are run by clients"), "tools", "mcp_servers_config", "mcp_servers_json", "agent"),
    "api_key_file": NoEffect("set SM_LLAMA_CPP_API_KEY"),
    "embd_normalize": VLLM["normalize"],
    **_all(_TLS, "ssl_key_file", "ssl_cert_file"),
}
"""`SM_LLAMA_CPP_<FLAG>`: flags of llama.cpp's server."""

FLAGS: Final[Mapping[str, Mapping[str, Meaning]]] = {"SM_VLLM_": VLLM, "SM_SGLANG_": SGLANG, "SM_LLAMA_CPP_": LLAMA_CPP}
"""Prefix of the variables of AWS's containers → the flags of the server in them."""
