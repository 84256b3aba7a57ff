"""
The names of SageMaker, TGI, LMI (DJL), vLLM and TorchServe containers, each with its meaning.

A key may be several names, separated by spaces. Sources: see `container_names`.
"""

import re

from headrace.serving.settings import container_backends as backend
from headrace.serving.settings import container_values as shared
from headrace.serving.settings.container_meanings import (
    Converted,
    Fills,
    Meaning,
    NoEffect,
    Requires,
    UsedElsewhere,
    same,
    spread,
)

_NOT_SHARED = NoEffect("the KV cache is not shared between servers")
_NO_LIMIT = NoEffect("answers are streamed, so their size needs no limit")
_MIXED = NoEffect("each step mixes waiting prompts with decoding")
_UNTRUSTED = NoEffect("code, pickles and requirements of a model folder are never run, with or without it")
_NO_JAVA = NoEffect("there is no Java virtual machine")
_RESTARTS = NoEffect("restarting the server is up to the process that started it")
_MEMORY = NoEffect("memory is planned from the model and the memory that this process may use")
_STATUSES = NoEffect("errors always have the status codes of the dialect", ("true",))
_HEALTH = NoEffect("/ping reports the health of the engine")
_NOT_KEPT = NoEffect("answers are streamed and not kept")
_CONTINUOUS = NoEffect("requests are batched continuously and do not wait for others", ("1",))
_HUB = UsedElsewhere("huggingface_hub")


def _read_s3url(raw: str) -> Converted:
    """Accept DJL's older name for the location of a model; s5cmd's wildcard at its end means the whole prefix."""
    return raw.removesuffix("*"), "model_id is its newer name"


def _read_model_name(raw: str) -> Converted:
    """Accept a Hub id; handlers also use `model_name` for a label without meaning."""
    return (raw, "") if "/" in raw else (None, "it is a label; model_path names the model")


ENVIRONMENT: dict[str, Meaning] = spread(
    {
        "HF_MODEL_ID MODEL_ID": Fills("model"),
        "HF_REVISION HF_MODEL_REVISION REVISION": Fills("revision"),
        "SAGEMAKER_BIND_TO_PORT PORT": Fills("port"),
        "API_KEY": Fills("api_key"),
        "DTYPE": shared.DTYPE,
        "HF_MODEL_QUANTIZE QUANTIZE": shared.QUANTIZE,
        "KV_CACHE_DTYPE": shared.KV_DTYPE,
        "MAX_TOTAL_TOKENS": shared.MAX_MODEL_LEN,
        "MAX_INPUT_TOKENS MAX_INPUT_LENGTH": shared.MAX_PROMPT_TOKENS,
        "MAX_BATCH_PREFILL_TOKENS": Fills("max_num_batched_tokens"),
        "MAX_BATCH_TOTAL_TOKENS": Fills("max_kv_cache_tokens"),
        "MAX_BATCH_SIZE": Fills("max_num_seqs"),
        "MAX_CONCURRENT_REQUESTS": Fills("max_concurrent_requests"),
        "MAX_BEST_OF": Fills("max_best_of"),
        "MAX_STOP_SEQUENCES": Fills("max_stop_sequences"),
        "MAX_TOP_N_TOKENS": Fills("max_top_n_tokens"),
        "PAYLOAD_LIMIT SAGEMAKER_MAX_REQUEST_SIZE": shared.BODY_BYTES,
        "SAGEMAKER_MAX_PAYLOAD_IN_MB": shared.BODY_MEGABYTES,
        "GRACEFUL_TERMINATION_TIMEOUT": Fills("shutdown_grace_s"),
        "CORS_ALLOW_ORIGIN": Fills("cors_allow_origins"),
        "SERVING_DOWNLOAD_DIR": Fills("cache_dir", lambda raw: (None if raw == "default" else raw, "")),
        "JSON_OUTPUT": shared.JSON_LOG,
        "SAGEMAKER_CONTAINER_LOG_LEVEL": shared.LOG_NUMBER,
        "HF_TOKEN HUGGING_FACE_HUB_TOKEN HUGGINGFACE_HUB_CACHE HF_HOME HF_HUB_OFFLINE": _HUB,
        "SM_NUM_GPUS NUM_SHARD": backend.TENSOR_PARALLEL,
        "SHARDED": shared.NOT_SPLIT,
        "TENSOR_PARALLEL_DEGREE": backend.TENSOR_PARALLEL,
        "PIPELINE_PARALLEL_DEGREE": backend.PIPELINE_PARALLEL,
        "SHARD_UDS_PATH MASTER_ADDR MASTER_PORT": shared.NOT_SPLIT,
        "HF_TASK": shared.TASK,
        "POOLING": shared.POOLING,
        "HF_MODEL_TRUST_REMOTE_CODE TRUST_REMOTE_CODE": backend.TRUST_REMOTE_CODE,
        "DJL_ENTRY_POINT": shared.ENTRY_POINT,
        "MODEL_LOADING_TIMEOUT SAGEMAKER_STARTUP_TIMEOUT": shared.NO_LOAD_TIMEOUT,
        "PREDICT_TIMEOUT SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS SAGEMAKER_MODEL_SERVER_TIMEOUT": shared.NO_TIMEOUT,
        "SAGEMAKER_RESPONSE_TIMEOUT": shared.NO_TIMEOUT,
        "SAGEMAKER_NUM_MODEL_WORKERS SAGEMAKER_MODEL_SERVER_WORKERS VALIDATION_WORKERS": shared.NO_WORKERS,
        "SAGEMAKER_MULTI_MODEL": NoEffect("the server serves one model", ("false",)),
        "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": NoEffect("the dialect determines the format of the response"),
        "SAGEMAKER_MAX_RESPONSE_SIZE": _NO_LIMIT,
        "SAGEMAKER_SECURE_MODE SAGEMAKER_SECURITY_CONTROLS SAGEMAKER_UNTRUSTED_CHANNELS": _UNTRUSTED,
        "SAGEMAKER_ENABLE_STATEFUL_SESSIONS SAGEMAKER_SESSIONS_EXPIRATION": shared.NO_SESSIONS,
        "SAGEMAKER_SESSIONS_PATH": shared.NO_SESSIONS,
        "SAGEMAKER_REGION": UsedElsewhere("AWS's SDKs"),
        "SAGEMAKER_MODEL_SERVER_VMARGS SAGEMAKER_MAX_HEAP_SIZE SAGEMAKER_MAX_DIRECT_MEMORY_SIZE": _NO_JAVA,
        "SAGEMAKER_SAFE_PORT_RANGE": NoEffect("the server needs no further port"),
        "SAGEMAKER_SERVING_MODULE": NoEffect("the image decides how the model is served"),
        "SAGEMAKER_USE_NGINX": NoEffect("no proxy is started"),
        "SAGEMAKER_BASE_DIR": NoEffect("the container's folders are below /opt/ml", ("/opt/ml", "/opt/ml/")),
        "SAGEMAKER_ENABLE_LOAD_AWARE": NoEffect("the load is reported on /metrics"),
        "SAGEMAKER_PROGRAM SAGEMAKER_SUBMIT_DIRECTORY SAGEMAKER_HANDLER": shared.NO_CUSTOM_CODE,
        "CUSTOM_SCRIPT_FILENAME CUSTOM_FASTAPI_PING_HANDLER": shared.NO_CUSTOM_CODE,
        "CUSTOM_FASTAPI_INVOCATION_HANDLER STANDARD_AUTO_INSTALL_REQ STANDARD_PIP_ARGS": shared.NO_CUSTOM_CODE,
        "PROCESS_AUTO_RECOVERY PROCESS_MAX_START_RETRIES": _RESTARTS,
        "HF_SEQUENCE_LENGTH HF_OPTIMUM_SEQUENCE_LENGTH": shared.MAX_MODEL_LEN,
        "HF_BATCH_SIZE HF_OPTIMUM_BATCH_SIZE": Fills("max_num_seqs"),
        "HF_AUTO_CAST_TYPE": shared.DTYPE,
        "HF_NUM_CORES": shared.NOT_SPLIT,
        "NEURONX_CACHE NEURONX_DUMP_TO": shared.NO_NEURON,
        "SPECULATE": backend.MAX_DRAFT_TOKENS,
        "WAITING_SERVED_RATIO MAX_WAITING_TOKENS": _MIXED,
        "CUDA_GRAPHS": backend.CUDA_GRAPHS,
        "CUDA_MEMORY_FRACTION": backend.GPU_MEMORY,
        "DISABLE_CUSTOM_KERNELS": shared.NO_GPU,
        "ROPE_SCALING": shared.ROPE_TYPE,
        "ROPE_FACTOR": shared.ROPE_FACTOR,
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": NoEffect(
            "max_model_len is at most what the rope allows; see rope", ("0", "false")
        ),
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": backend.STEP_TIMEOUT,
        "HOSTNAME": UsedElsewhere("the operating system: it is the container's own name; see host"),
        "PROMETHEUS_PORT": NoEffect("metrics are on /metrics of the same port"),
        "WEIGHTS_CACHE_OVERRIDE": NoEffect("see cache_dir"),
        "OTLP_ENDPOINT": shared.OTLP_ENDPOINT,
        "OTLP_SERVICE_NAME": NoEffect("see OTEL_SERVICE_NAME"),
        "WATERMARK_GAMMA WATERMARK_DELTA": NoEffect("watermarking is not supported"),
        "NGROK NGROK_AUTHTOKEN NGROK_EDGE": NoEffect("ngrok tunnels are not supported", ("false",)),
        "TS_JOB_QUEUE_SIZE": Fills("max_concurrent_requests"),
        "TS_MAX_REQUEST_SIZE": shared.BODY_BYTES,
        "TS_MAX_RESPONSE_SIZE": _NO_LIMIT,
        "TS_INSTALL_PY_DEP_PER_MODEL": shared.NO_CUSTOM_CODE,
        "TS_DEFAULT_WORKERS_PER_MODEL": shared.NO_WORKERS,
        "TS_DEFAULT_RESPONSE_TIMEOUT": shared.NO_TIMEOUT,
        "TS_DEFAULT_STARTUP_TIMEOUT": shared.NO_LOAD_TIMEOUT,
        "TS_DISABLE_TOKEN_AUTHORIZATION": NoEffect("tokens are not required; see api_key", ("true",)),
        "TS_METRICS_MODE": NoEffect("metrics are on /metrics", ("prometheus",)),
        "MMS_JOB_QUEUE_SIZE": Fills("max_concurrent_requests"),
        "MMS_MAX_REQUEST_SIZE": shared.BODY_BYTES,
        "MMS_MAX_RESPONSE_SIZE": _NO_LIMIT,
        "MMS_DEFAULT_WORKERS_PER_MODEL": shared.NO_WORKERS,
        "MMS_DEFAULT_RESPONSE_TIMEOUT MMS_DEFAULT_RESPONSE_TIMEOUT_SECONDS": shared.NO_TIMEOUT,
        "TOKENIZER_CONFIG_PATH": NoEffect("the tokenizer of the model is used"),
        "DISABLE_GRAMMAR_SUPPORT": NoEffect("grammars are always supported", ("false", "0")),
        "MAX_CLIENT_BATCH_SIZE": NoEffect("a request has one prompt"),
        "LORA_ADAPTERS": Fills("adapter"),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": Fills("allow_runtime_lora_updating"),
        "USAGE_STATS": NoEffect("usage statistics are never sent", ("off",)),
        "ENABLE_PREFILL_LOGPROBS": shared.ALWAYS,
        "AIP_HTTP_PORT AIP_PREDICT_ROUTE AIP_HEALTH_ROUTE": NoEffect("Vertex AI's routes are not served"),
    }
)
"""Full names of environment variables; if two set the same field, the first one counts."""

_GENERAL = (
    "API_KEY DTYPE HOSTNAME JSON_OUTPUT KV_CACHE_DTYPE MASTER_ADDR MASTER_PORT MAX_BATCH_SIZE MODEL_ID NGROK "
    "NGROK_AUTHTOKEN NGROK_EDGE OTLP_ENDPOINT OTLP_SERVICE_NAME PAYLOAD_LIMIT PORT PREDICT_TIMEOUT PROMETHEUS_PORT "
    "QUANTIZE REVISION SHARDED USAGE_STATS"
)
GENERAL_NAMES = frozenset(_GENERAL.split())
"""Names that often mean something else outside a container, and are read only inside one."""

FAMILY_PREFIXES = ("HF_", "MAX_", "MMS_", "SAGEMAKER_", "SM_", "TS_")
"""Beginnings of names above: another name with one of them, unless it is of the pattern below, is probably meant."""

USED_ELSEWHERE = re.compile(
    r"HF_(HUB|DATASETS|EVALUATE|MODULES|METRICS|XET|ENDPOINT|ASSETS|TOKEN|INFERENCE|DEBUG|UPDATE|ALLOW|DEACTIVATE)(_.*)?|"
    r"SM_(MODEL_DIR|CHANNELS?|HPS?|HOSTS|CURRENT|INPUT|OUTPUT|LOG_LEVEL|MODULE|USER|FRAMEWORK|TRAINING|NETWORK|NUM_CPUS|"
    r"NUM_NEURONS|RESOURCE|INTERMEDIATE|INSTANCE|MASTER)(_.*)?|MAX_JOBS"
)
"""Names of libraries and of SageMaker's toolkits with those beginnings."""

_SERVER_FIELDS = frozenset(
    {"port", "api_key", "max_body_bytes", "shutdown_grace_s", "cors_allow_origins", "log_format", "log_level"}
)
SERVER_NAMES = frozenset(
    name for name, meaning in ENVIRONMENT.items() if isinstance(meaning, Fills) and meaning.field in _SERVER_FIELDS
)
"""Variables that set what a server has whichever model it serves: a model's own code, too."""

OPTIONS: dict[str, Meaning] = spread(
    {
        "model_id model": Fills("model"),
        "s3url": Fills("model", _read_s3url),
        "revision": Fills("revision"),
        "dtype data_type": shared.DTYPE,
        "quantize": shared.QUANTIZE,
        "kv_cache_dtype": shared.KV_DTYPE,
        "max_model_len n_positions max_seq_len max_tokens": shared.MAX_MODEL_LEN,
        "max_input_len": shared.MAX_PROMPT_TOKENS,
        "max_rolling_batch_size max_num_seqs": Fills("max_num_seqs"),
        "max_rolling_batch_prefill_tokens max_num_batched_tokens max_num_tokens": Fills("max_num_batched_tokens"),
        "rolling_batch": backend.ROLLING_BATCH,
        "output_formatter": shared.OUTPUT_FORMATTER,
        **same("tgi_compat chat_template"),
        "enable_prefix_caching enable_kv_cache_reuse": Fills("enable_prefix_caching"),
        "max_logprobs": Fills("max_top_n_tokens"),
        "served_model_name": Fills("served_model_name"),
        "task": shared.TASK,
        "runner": shared.RUNNER,
        "convert": shared.CONVERT,
        "entrypoint": shared.ENTRY_POINT,
        **backend.VLLM_OPTIONS,
        "trust_remote_code": backend.TRUST_REMOTE_CODE,
        "load_format": backend.LOAD_FORMAT,
        "low_cpu_mem_usage paged_attention async_mode enable_chunked_prefill enable_streaming": shared.ALWAYS,
        "waiting_steps": _MIXED,
        "bedrock_compat": NoEffect("Bedrock's format is not supported", ("false",)),
        "max_output_size": _NO_LIMIT,
        "tensor_parallel_degree": backend.TENSOR_PARALLEL,
        "pipeline_parallel_degree": backend.PIPELINE_PARALLEL,
        "tensor_parallel_size": backend.TENSOR_PARALLEL,
        "pipeline_parallel_size": backend.PIPELINE_PARALLEL,
        "cluster_size mpi_mode parallel_loading device_map": shared.NOT_SPLIT,
        "gpu_memory_utilization": backend.GPU_MEMORY,
        "cpu_offload_gb_per_gpu": backend.CPU_OFFLOAD,
        "swap_space kv_cache_free_gpu_mem_fraction kv_cache_host_memory_bytes": shared.NO_GPU,
        "enforce_eager": backend.ENFORCE_EAGER,
        "block_size": backend.BLOCK_SIZE,
        "tokens_per_block": NoEffect("the kernels determine the block size"),
        "normalize": NoEffect(
            "the model's files say whether vectors are normalized, unless a request sets `normalize`"
        ),
        "smoothquant_alpha": Fills("smoothquant_alpha"),
        "smoothquant_per_token": Requires(("true",), "Activations always have a scale for each token. Remove it."),
        "smoothquant_per_channel": Requires(("true",), "Weights always have a scale for each channel. Remove it."),
        "quantization_param_path": NoEffect(
            "scales are computed at load; see smoothquant_alpha and `headrace quantize`"
        ),
        **shared.ROPE_FLAGS,
        "rope_scaling_type": shared.ROPE_TYPE,
        "rope_scaling_factor": shared.ROPE_FACTOR,
        **same("enable_lora max_loras max_lora_rank"),
        "lora_extra_vocab_size long_lora_scaling_factors": shared.LORA_TUNING,
        "record_acceptance_rate": shared.NO_DRAFT_MODEL,
        "speculative_config": backend.SPECULATIVE_CONFIG,
        "chat_template_content_format enable_auto_tool_choice tool_call_parser": shared.PARSERS,
        "enable_reasoning reasoning_parser": shared.PARSERS,
        "generation_config": Fills("generation_config"),
        "limit_mm_per_prompt": NoEffect("prompts are text only"),
        "kv_transfer_config lmcache_config_file lmcache_auto_config": _NOT_SHARED,
        "enable_stateful_sessions sessions_path sessions_expiration": shared.NO_SESSIONS,
        "model_loading_timeout": shared.NO_LOAD_TIMEOUT,
        "predict_timeout": shared.NO_TIMEOUT,
        "enable_venv python_executable": shared.NO_CUSTOM_CODE,
        "triangular_masking return_tuple enable_cuda_graph replace_method checkpoint": shared.COMPILER,
        "training_mp_size": shared.NOT_SPLIT,
        "unroll load_in_8bit load_split_model context_length_estimate amp compiled_graph_path": shared.COMPILER,
        "group_query_attention neuron_optimize_level enable_mixed_precision_accumulation fuse_qkv": shared.COMPILER,
        "on_device_embedding disable_flash_attn use_custom_all_reduce batch_scheduler_policy": shared.COMPILER,
        "baichuan_model_version chatglm_version max_output_len max_beam_width": shared.COMPILER,
        "decoding_strategy max_sparsity max_splits": NoEffect("sampling is set by each request"),
    }
)
"""`option.<key>` of serving.properties and `OPTION_<KEY>`."""

VLLM: dict[str, Meaning] = {
    **OPTIONS,
    **same("host port api_key"),
    "quantization": shared.QUANTIZE,
    "download_dir": Fills("cache_dir"),
    "tokenizer": NoEffect("the tokenizer of the model is used"),
    "tokenizer_mode": shared.OWN_TOKENIZER,
    "lora_modules": Fills("adapter"),
    "seed": backend.SEED,
    "otlp_traces_endpoint": shared.OTLP_ENDPOINT,
    "disable_log_requests": NoEffect("prompts are not logged, unless log_prompts is on", ("true",)),
    "disable_log_stats": NoEffect("metrics are on /metrics"),
    "enable_log_requests": NoEffect("see log_prompts", ("false",)),
}
"""`SM_VLLM_<FLAG>`: vLLM's flags."""

PROPERTIES: dict[str, Meaning] = spread(
    {
        "engine": NoEffect("this server has one engine", ("python", "mpi", "deepspeed")),
        "job_queue_size": Fills("max_concurrent_requests"),
        "max_request_size": shared.BODY_BYTES,
        "batch_size": NoEffect("requests are batched continuously", ("1",)),
        "max_batch_delay": NoEffect("requests are batched continuously and do not wait for others"),
        "max_idle_time minworkers maxworkers min_workers max_workers gpu.minworkers": shared.NO_WORKERS,
        "gpu.maxworkers cpu.minworkers cpu.maxworkers retry_threshold load_on_devices": shared.NO_WORKERS,
        "required_memory_mb reserved_memory_mb gpu.required_memory_mb gpu.reserved_memory_mb": _MEMORY,
        "log_model_metric log_request_metric metrics_aggregation prometheus": shared.METRICS,
        "load_models model_store model_url_pattern": NoEffect("the server serves one model"),
        "wait_model_loading": NoEffect("/ping answers 503 while the model loads and 200 when it is ready"),
        "allow_multi_status": NoEffect("the server serves one model, so /ping answers 200 or 503"),
        "inference_address management_address cluster_address": NoEffect("use host and port instead"),
        "chunked_read_timeout": shared.NO_TIMEOUT,
        "error_rate_wlm error_rate_server error_rate_model error_rate_any": _HEALTH,
        "bad_request_http_code wlm_error_http_code throttle_error_http_code timeout_http_code": _STATUSES,
        "server_error_http_code backport_for_non_streaming_http_error_codes": _STATUSES,
        "request_id_header_key": NoEffect("the header is X-Request-Id"),
        "cors_allowed_origin": Fills("cors_allow_origins"),
        "cors_allowed_methods cors_allowed_headers": NoEffect("all methods and headers are allowed"),
        "keystore keystore_pass keystore_type private_key_file certificate_file": shared.TLS,
        "memory_cache_capacity ddb_cache ddb_table_name s3_cache s3_cache_bucket s3_cache_key_prefix": _NOT_KEPT,
        "s3_cache_autocreate cache_batch cache_multitenant": _NOT_KEPT,
    }
)
"""Other keys of serving.properties and config.properties, and `SERVING_<KEY>`."""

MODEL_CONFIG: dict[str, Meaning] = spread(
    {
        "minWorkers maxWorkers": shared.NO_WORKERS,
        "batchSize maxBatchDelay micro_batching": _CONTINUOUS,
        "continuousBatching asyncCommunication": shared.ALWAYS,
        "responseTimeout clientTimeoutInMills": shared.NO_TIMEOUT,
        "startupTimeout": shared.NO_LOAD_TIMEOUT,
        "maxRetryTimeoutInSec": _RESTARTS,
        "jobQueueSize": Fills("max_concurrent_requests"),
        "useJobTicket": NoEffect("a full server answers 429 with Retry-After"),
        "deviceType": NoEffect("the model runs on the CPU", ("cpu",)),
        "deviceIds parallelType": shared.NOT_SPLIT,
        "parallelLevel": backend.TENSOR_PARALLEL,
        "torchrun pippy deepspeed": shared.NOT_SPLIT,
        "sequenceBatching sequenceMaxIdleMSec sequenceTimeoutMSec": shared.NO_SESSIONS,
        "maxSequenceJobQueueSize maxNumSequence": shared.NO_SESSIONS,
        "useVenv": shared.NO_CUSTOM_CODE,
        "handler.model_checkpoint_dir handler.model_path handler.model_id": Fills("model"),
        "handler.model_name": Fills("model", _read_model_name),
        "handler.revision": Fills("revision"),
        "handler.max_new_tokens handler.max_length": Fills("default_max_new_tokens"),
        "handler.dtype": shared.DTYPE,
        "handler.amp": NoEffect("dtype selects the format of the weights", ("bf16", "bfloat16")),
        "handler.tp_degree": backend.TENSOR_PARALLEL,
        "handler.tensor_parallel": shared.NOT_SPLIT,
        "handler.manual_seed": NoEffect("the seed is a field of each request"),
    }
)
"""
TorchServe's `model-config.yaml`: top-level keys, and keys of `handler` after a dot. Any other key of `handler` is for
code that is not run; keys of `handler.vllm_engine_config` are vLLM options. Source: pytorch/serve
`docs/configuration.md` and `examples/large_models`.
"""

MODEL_KEYS = ("handler.model_checkpoint_dir", "handler.model_path", "handler.model_id", "handler.model_name")
"""Keys that may name the model, the most specific one first."""
