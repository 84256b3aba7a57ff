"""
Meanings of the flags of SGLang and llama.cpp: `SM_SGLANG_<FLAG>` and `SM_LLAMA_CPP_<FLAG>` in AWS's containers.

A key may be several flags, separated by spaces.
Sources: `scripts/docker/{sglang,llama_cpp}/sagemaker_entrypoint.sh` of aws/deep-learning-containers, SGLang's
`docs/advanced_features/server_arguments.md`, llama.cpp's `tools/server/README.md`.
"""

from collections.abc import Mapping
from typing import Final

from headrace.serving.settings import container_backends as backend
from headrace.serving.settings import container_values as shared
from headrace.serving.settings.container_meanings import Fills, Meaning, NoEffect, by_value, same, spread
from headrace.serving.settings.container_tables import VLLM
from headrace.serving.settings.container_values import if_true, unless

_LOGS = NoEffect("see log_level and log_format")
_NO_PROMPT_LOG = NoEffect("prompts are logged if log_prompts is on", ("false",))
_TEXT_ONLY = NoEffect("prompts are text only")
_REQUESTS = NoEffect("it is a field of each request; see generation_config for defaults")
_NO_SLOTS = NoEffect("prompts with equal beginnings share their KV cache; see enable_prefix_caching")

SGLANG: dict[str, Meaning] = spread(
    {
        "model_path model": Fills("model"),
        **same("revision served_model_name host port api_key"),
        "quantization": shared.SGLANG_QUANTIZATION,
        "dtype": shared.DTYPE,
        "kv_cache_dtype": shared.KV_DTYPE,
        "context_length": shared.MAX_MODEL_LEN,
        "max_running_requests": Fills("max_num_seqs"),
        "max_total_tokens": Fills("max_kv_cache_tokens"),
        "chunked_prefill_size": Fills("max_num_batched_tokens", unless("prompts are always read in chunks", "-1")),
        "max_queued_requests": NoEffect("running and waiting requests have one limit: max_concurrent_requests"),
        "is_embedding": Fills("task", if_true("embed")),
        "device": backend.DEVICE,
        "log_level": shared.LOG_LEVEL,
        "chat_template": Fills("chat_template"),
        "sampling_defaults": Fills(
            "generation_config", by_value({"model": "auto", "openai": "vllm"}, "model or openai")
        ),
        "disable_radix_cache": Fills("enable_prefix_caching", if_true("false")),
        "disable_cuda_graph": backend.ENFORCE_EAGER,
        "enable_deterministic_inference": Fills("batch_invariant", if_true("true")),
        "download_dir": Fills("cache_dir"),
        "otlp_traces_endpoint": shared.OTLP_ENDPOINT,
        "enable_trace": NoEffect("spans are sent if otlp_traces_endpoint is set", ("true",)),
        "enable_lora": Fills("enable_lora"),
        "lora_paths": Fills("adapter"),
        "max_loras_per_batch": Fills("max_loras"),
        "max_lora_rank": Fills("max_lora_rank"),
        "json_model_override_args": shared.HF_OVERRIDES,
        "trust_remote_code": backend.TRUST_REMOTE_CODE,
        "load_format": backend.LOAD_FORMAT,
        "model_impl": backend.vllm_argument("model_impl"),
        "mem_fraction_static": backend.GPU_MEMORY,
        "cpu_offload_gb": backend.CPU_OFFLOAD,
        "page_size": backend.BLOCK_SIZE,
        "random_seed": backend.SEED,
        "tp tp_size tensor_parallel_size": backend.TENSOR_PARALLEL,
        "pp pp_size pipeline_parallel_size": backend.PIPELINE_PARALLEL,
        "dp dp_size data_parallel_size ep ep_size expert_parallel_size nnodes node_rank": shared.NOT_SPLIT,
        "dist_init_addr nccl_init_addr nccl_port dist_timeout enable_dp_attention": shared.NOT_SPLIT,
        "load_balance_method base_gpu_id gpu_id_step enable_p2p_check disaggregation_mode": shared.NOT_SPLIT,
        "moe_dp_size attn_cp_size": shared.NOT_SPLIT,
        "tokenizer_path tokenizer_mode skip_tokenizer_init hf_chat_template_name": shared.OWN_TOKENIZER,
        "tokenizer_worker_num": shared.NO_WORKERS,
        "enable_multimodal": _TEXT_ONLY,
        "reasoning_parser tool_call_parser": shared.PARSERS,
        "model_loader_extra_config warmups custom_sigquit_handler tool_server": shared.NO_CUSTOM_CODE,
        "soft_watchdog_timeout": shared.NO_TIMEOUT,
        "watchdog_timeout": NoEffect("see step_timeout_s, which is for vLLM"),
        "skip_server_warmup": NoEffect("the server is ready when the model is loaded"),
        "stream_interval stream_output incremental_streaming_output": NoEffect(
            "every token is streamed at once", ("1", "-1")
        ),
        "schedule_policy schedule_conservativeness enable_priority_scheduling": NoEffect(
            "requests run in the order of their arrival", ("fcfs",)
        ),
        "max_prefill_tokens prefill_max_requests": NoEffect("chunked_prefill_size sets the token budget of a step"),
        "radix_eviction_policy": NoEffect("the least recently used blocks go first", ("lru",)),
        "log_requests log_requests_level log_requests_format log_requests_target": _NO_PROMPT_LOG,
        "log_level_http decode_log_interval show_time_cost enable_request_time_stats_logging": _LOGS,
        "enable_metrics enable_metrics_for_all_schedulers enable_mfu_metrics": shared.METRICS,
        "export_metrics_to_file export_metrics_to_file_dir collect_tokens_histogram": shared.METRICS,
        "enable_cache_report": shared.ALWAYS,
        "admin_api_key": NoEffect("there is one key; see api_key"),
        "preferred_sampling_params": NoEffect("see generation_config"),
        "attention_backend prefill_attention_backend decode_attention_backend sampling_backend": shared.COMPILER,
        "grammar_backend enable_torch_compile torch_compile_max_bs torchao_config cuda_graph_bs": shared.COMPILER,
        "cuda_graph_max_bs disable_cuda_graph_padding disable_overlap_schedule": shared.COMPILER,
        "disable_custom_all_reduce disable_piecewise_cuda_graph enable_mixed_chunk": shared.COMPILER,
        "moe_a2a_backend moe_runner_backend fp8_gemm_backend mm_attention_backend": shared.COMPILER,
        "enable_fp32_lm_head swa_full_tokens_ratio disable_hybrid_swa_memory": shared.COMPILER,
        "triton_attention_num_kv_splits": shared.COMPILER,
        "quantization_param_path": VLLM["quantization_param_path"],
        "lora_backend lora_target_modules max_loaded_loras lora_eviction_policy": shared.LORA_TUNING,
        "speculative_algorithm speculative_draft_model_path speculative_num_steps": shared.NO_DRAFT_MODEL,
        "speculative_eagle_topk speculative_num_draft_tokens speculative_attention_mode": shared.NO_DRAFT_MODEL,
        "ssl_keyfile ssl_certfile ssl_ca_certs ssl_keyfile_password": shared.TLS,
    }
)
"""`SM_SGLANG_<FLAG>`: SGLang's flags."""

LLAMA_CPP: dict[str, Meaning] = spread(
    {
        "model hf_repo model_dir": Fills("model"),
        "alias": Fills("served_model_name"),
        **same("host port api_key"),
        "ctx_size": shared.MAX_MODEL_LEN,
        "parallel": Fills("max_num_seqs", unless("", "-1", "0")),
        "ubatch_size": Fills("max_num_batched_tokens"),
        "batch_size": NoEffect("ubatch_size sets the token budget of a step"),
        "n_predict predict": Fills("default_max_new_tokens", unless("the answer ends with the context", "-1", "-2")),
        "threads": Fills("threads", unless("", "-1", "0")),
        "cache_type_k cache_type_v": shared.GGML_KV_TYPE,
        "embedding embeddings": Fills("task", if_true("embed")),
        "reranking rerank": Fills("task", if_true("score")),
        "pooling": shared.GGML_POOLING,
        "chat_template chat_template_file": Fills("chat_template"),
        "rope_scaling": shared.GGML_ROPE_TYPE,
        "rope_scale": shared.ROPE_FACTOR,
        "rope_freq_base": shared.ROPE_THETA,
        "yarn_orig_ctx": shared.GGML_ROPE_CONTEXT,
        "n_gpu_layers gpu_layers": backend.GPU_LAYERS,
        "cors_origins": Fills("cors_allow_origins"),
        "cache_prompt": Fills("enable_prefix_caching"),
        "no_cache_prompt": Fills("enable_prefix_caching", if_true("false")),
        "no_webui no_ui": Fills("web", if_true("false")),
        "webui ui": Fills("web"),
        "verbose": Fills("log_level", if_true("debug")),
        "log_jsonl": Fills("log_format", if_true("json")),
        "seed": backend.SEED,
        "hf_file": NoEffect("it is a file of the repository that SM_LLAMA_CPP_HF_REPO names"),
        "hf_token": NoEffect("set HF_TOKEN"),
        "model_url": NoEffect("name a file, a Hub id or an s3:// prefix in SM_LLAMA_CPP_MODEL"),
        "offline": NoEffect("set HF_HUB_OFFLINE"),
        "no_warmup warmup": shared.NO_LOAD_TIMEOUT,
        "timeout sse_ping_interval": shared.NO_TIMEOUT,
        "cont_batching jinja metrics": shared.ALWAYS,
        "no_cont_batching": NoEffect("continuous batching is always on", ("false",)),
        "no_jinja": NoEffect("chat templates are always Jinja", ("false",)),
        "reasoning_format reasoning_budget reasoning reasoning_effort chat_template_kwargs": shared.PARSERS,
        "threads_batch threads_http cpu_mask cpu_range cpu_strict prio poll numa": NoEffect("see threads"),
        "device override_tensor n_cpu_moe cpu_moe op_offload kv_offload no_kv_offload": NoEffect(
            "one device runs the whole model; see device"
        ),
        "split_mode tensor_split main_gpu rpc": shared.NOT_SPLIT,
        "flash_attn no_flash_attn swa_full fit fit_ctx fit_target defrag_thold": shared.COMPILER,
        "rope_freq_scale yarn_ext_factor yarn_attn_factor yarn_beta_slow yarn_beta_fast": shared.COMPILER,
        "mlock mmap no_mmap load_mode repack no_repack check_tensors direct_io": NoEffect(
            "weights are packed once and mapped from the disk"
        ),
        "lora lora_scaled lora_init_without_apply control_vector control_vector_scaled": NoEffect(
            "adapters are folders that PEFT wrote; see adapter"
        ),
        "mmproj mmproj_url no_mmproj image_min_tokens image_max_tokens": _TEXT_ONLY,
        "slots no_slots slot_save_path slot_prompt_similarity cache_reuse cache_ram": _NO_SLOTS,
        "kv_unified no_kv_unified ctx_checkpoints swa_checkpoints": _NO_SLOTS,
        "context_shift keep": NoEffect("the context is not shifted", ("false",)),
        "no_context_shift": shared.ALWAYS,
        "model_draft draft draft_max draft_min draft_p_min hf_repo_draft spec_type": shared.NO_DRAFT_MODEL,
        "temp temperature top_k top_p min_p typical repeat_penalty repeat_last_n presence_penalty": _REQUESTS,
        "frequency_penalty samplers ignore_eos logit_bias mirostat grammar grammar_file": _REQUESTS,
        "json_schema json_schema_file reverse_prompt special": _REQUESTS,
        "verbosity log_verbosity log_file log_disable log_colors log_prefix log_timestamps": _LOGS,
        "models_dir models_preset models_max models_autoload api_prefix path props": NoEffect(
            "the server serves one model"
        ),
        "tools mcp_servers_config mcp_servers_json agent": NoEffect("tools are run by clients"),
        "api_key_file": NoEffect("set SM_LLAMA_CPP_API_KEY"),
        "embd_normalize": VLLM["normalize"],
        "ssl_key_file ssl_cert_file": shared.TLS,
    }
)
"""`SM_LLAMA_CPP_<FLAG>`: flags of llama.cpp's server."""

FLAGS: Final[Mapping[str, Mapping[str, Meaning]]] = {"SM_VLLM_": VLLM, "SM_SGLANG_": SGLANG, "SM_LLAMA_CPP_": LLAMA_CPP}
"""Prefix of the variables of AWS's containers → the flags of the server in them."""
