"""Meanings of the environment variables of SageMaker, TGI, LMI and TorchServe containers."""

import re

from headrace.settings.container_backends import (
    CUDA_GRAPHS,
    GPU_MEMORY,
    PIPELINE_PARALLEL,
    STEP_TIMEOUT,
    TENSOR_PARALLEL,
    TRUST_REMOTE_CODE,
)
from headrace.settings.container_meanings import (
    ALWAYS,
    DTYPE,
    KV_DTYPE,
    LOG_LEVELS,
    MAX_DRAFT_TOKENS,
    MAX_MODEL_LEN,
    MAX_PROMPT_TOKENS,
    NO_CUSTOM_CODE,
    NO_GPU,
    NO_LOAD_TIMEOUT,
    NO_NEURON,
    NO_SESSIONS,
    NO_TIMEOUT,
    NO_WORKERS,
    NOT_SPLIT,
    OTLP_ENDPOINT,
    POOLING,
    QUANTIZE,
    TASK,
    Fills,
    Meaning,
    NoEffect,
    UsedElsewhere,
    by_value,
    read_bytes,
    read_megabytes,
)
from headrace.settings.container_options import OPTIONS
from headrace.settings.rope_names import ROPE_FACTOR, ROPE_TYPE

ENVIRONMENT: dict[str, Meaning] = {
    "HF_MODEL_ID": Fills("model"),
    "MODEL_ID": Fills("model"),
    "HF_REVISION": Fills("revision"),
    "HF_MODEL_REVISION": Fills("revision"),
    "REVISION": Fills("revision"),
    "SAGEMAKER_BIND_TO_PORT": Fills("port"),
    "PORT": Fills("port"),
    "API_KEY": Fills("api_key"),
    "DTYPE": DTYPE,
    "HF_MODEL_QUANTIZE": QUANTIZE,
    "QUANTIZE": QUANTIZE,
    "KV_CACHE_DTYPE": KV_DTYPE,
    "MAX_TOTAL_TOKENS": MAX_MODEL_LEN,
    "MAX_INPUT_TOKENS": MAX_PROMPT_TOKENS,
    "MAX_INPUT_LENGTH": MAX_PROMPT_TOKENS,
    "MAX_BATCH_PREFILL_TOKENS": Fills("max_num_batched_tokens"),
    "MAX_BATCH_TOTAL_TOKENS": Fills("max_kv_cache_tokens"),
    "MAX_BATCH_SIZE": Fills("max_num_seqs"),
    "MAX_CONCURRENT_REQUESTS": Fills("max_concurrent_requests"),
    "MAX_BEST_OF": Fills("max_best_of"),
    "MAX_STOP_SEQUENCES": Fills("max_stop_sequences"),
    "MAX_TOP_N_TOKENS": Fills("max_top_n_tokens"),
    "PAYLOAD_LIMIT": Fills("max_body_bytes", read_bytes),
    "SAGEMAKER_MAX_REQUEST_SIZE": Fills("max_body_bytes", read_bytes),
    "SAGEMAKER_MAX_PAYLOAD_IN_MB": Fills("max_body_bytes", read_megabytes),
    "GRACEFUL_TERMINATION_TIMEOUT": Fills("shutdown_grace_s"),
    "CORS_ALLOW_ORIGIN": Fills("cors_allow_origins"),
    "SERVING_DOWNLOAD_DIR": Fills("cache_dir", lambda raw: (None if raw == "default" else raw, "")),
    "JSON_OUTPUT": Fills(
        "log_format", by_value("true or false", {"true": ("json", ""), "false": ("console", ""), "1": ("json", "")})
    ),
    "SAGEMAKER_CONTAINER_LOG_LEVEL": Fills("log_level", by_value("10, 20, 30, 40 or 50", LOG_LEVELS)),
    "HF_TOKEN": UsedElsewhere("huggingface_hub"),
    "HUGGING_FACE_HUB_TOKEN": UsedElsewhere("huggingface_hub"),
    "HUGGINGFACE_HUB_CACHE": UsedElsewhere("huggingface_hub"),
    "HF_HOME": UsedElsewhere("huggingface_hub"),
    "HF_HUB_OFFLINE": UsedElsewhere("huggingface_hub"),
    "SM_NUM_GPUS": TENSOR_PARALLEL,
    "NUM_SHARD": TENSOR_PARALLEL,
    "SHARDED": NOT_SPLIT,
    "TENSOR_PARALLEL_DEGREE": TENSOR_PARALLEL,
    "PIPELINE_PARALLEL_DEGREE": PIPELINE_PARALLEL,
    **dict.fromkeys(("SHARD_UDS_PATH", "MASTER_ADDR", "MASTER_PORT"), NOT_SPLIT),
    "HF_TASK": TASK,
    "POOLING": POOLING,
    "HF_MODEL_TRUST_REMOTE_CODE": TRUST_REMOTE_CODE,
    "TRUST_REMOTE_CODE": TRUST_REMOTE_CODE,
    "DJL_ENTRY_POINT": OPTIONS["entrypoint"],
    "MODEL_LOADING_TIMEOUT": NO_LOAD_TIMEOUT,
    "SAGEMAKER_STARTUP_TIMEOUT": NO_LOAD_TIMEOUT,
    **dict.fromkeys(
        (
            "PREDICT_TIMEOUT",
            "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS",
            "SAGEMAKER_MODEL_SERVER_TIMEOUT",
            "SAGEMAKER_RESPONSE_TIMEOUT",
        ),
        NO_TIMEOUT,
    ),
    **dict.fromkeys(
        ("SAGEMAKER_NUM_MODEL_WORKERS", "SAGEMAKER_MODEL_SERVER_WORKERS", "VALIDATION_WORKERS"), NO_WORKERS
    ),
    "SAGEMAKER_MULTI_MODEL": NoEffect("the server serves one model", ("false",)),
    "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": NoEffect("the dialect determines the format of the response"),
    "SAGEMAKER_MAX_RESPONSE_SIZE": OPTIONS["max_output_size"],
    **dict.fromkeys(
        ("SAGEMAKER_SECURE_MODE", "SAGEMAKER_SECURITY_CONTROLS", "SAGEMAKER_UNTRUSTED_CHANNELS"),
        NoEffect("code, pickles and requirements of a model folder are never run, with or without it"),
    ),
    **dict.fromkeys(
        ("SAGEMAKER_ENABLE_STATEFUL_SESSIONS", "SAGEMAKER_SESSIONS_EXPIRATION", "SAGEMAKER_SESSIONS_PATH"),
        NO_SESSIONS,
    ),
    "SAGEMAKER_REGION": UsedElsewhere("AWS's SDKs"),
    **dict.fromkeys(
        ("SAGEMAKER_MODEL_SERVER_VMARGS", "SAGEMAKER_MAX_HEAP_SIZE", "SAGEMAKER_MAX_DIRECT_MEMORY_SIZE"),
        NoEffect("there is no Java virtual machine"),
    ),
    "SAGEMAKER_SAFE_PORT_RANGE": NoEffect("the server needs no further port"),
    "SAGEMAKER_SERVING_MODULE": NoEffect("the image decides how the model is served"),
    "SAGEMAKER_USE_NGINX": NoEffect("no proxy is started"),
    "SAGEMAKER_BASE_DIR": NoEffect("the container's folders are below /opt/ml", ("/opt/ml", "/opt/ml/")),
    "SAGEMAKER_ENABLE_LOAD_AWARE": NoEffect("the load is reported on /metrics"),
    **dict.fromkeys(
        (
            "SAGEMAKER_PROGRAM",
            "SAGEMAKER_SUBMIT_DIRECTORY",
            "SAGEMAKER_HANDLER",
            "CUSTOM_SCRIPT_FILENAME",
            "CUSTOM_FASTAPI_PING_HANDLER",
            "CUSTOM_FASTAPI_INVOCATION_HANDLER",
            "STANDARD_AUTO_INSTALL_REQ",
            "STANDARD_PIP_ARGS",
        ),
        NO_CUSTOM_CODE,
    ),
    **dict.fromkeys(
        ("PROCESS_AUTO_RECOVERY", "PROCESS_MAX_START_RETRIES"),
        NoEffect("restarting the server is up to the process that started it"),
    ),
    **dict.fromkeys(("HF_SEQUENCE_LENGTH", "HF_OPTIMUM_SEQUENCE_LENGTH"), MAX_MODEL_LEN),
    **dict.fromkeys(("HF_BATCH_SIZE", "HF_OPTIMUM_BATCH_SIZE"), Fills("max_num_seqs")),
    "HF_AUTO_CAST_TYPE": DTYPE,
    "HF_NUM_CORES": NOT_SPLIT,
    **dict.fromkeys(("NEURONX_CACHE", "NEURONX_DUMP_TO"), NO_NEURON),
    "SPECULATE": MAX_DRAFT_TOKENS,
    **dict.fromkeys(
        ("WAITING_SERVED_RATIO", "MAX_WAITING_TOKENS"), NoEffect("each step mixes waiting prompts with decoding")
    ),
    "CUDA_GRAPHS": CUDA_GRAPHS,
    "CUDA_MEMORY_FRACTION": GPU_MEMORY,
    "DISABLE_CUSTOM_KERNELS": NO_GPU,
    "ROPE_SCALING": ROPE_TYPE,
    "ROPE_FACTOR": ROPE_FACTOR,
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": NoEffect(
        "max_model_len is at most what the rope allows; see rope", ("0", "false")
    ),
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": STEP_TIMEOUT,
    "HOSTNAME": UsedElsewhere("the operating system: it is the container's own name; see host"),
    "PROMETHEUS_PORT": NoEffect("metrics are on /metrics of the same port"),
    "WEIGHTS_CACHE_OVERRIDE": NoEffect("see cache_dir"),
    "OTLP_ENDPOINT": OTLP_ENDPOINT,
    "OTLP_SERVICE_NAME": NoEffect("see OTEL_SERVICE_NAME"),
    **dict.fromkeys(("WATERMARK_GAMMA", "WATERMARK_DELTA"), NoEffect("watermarking is not supported")),
    **dict.fromkeys(
        ("NGROK", "NGROK_AUTHTOKEN", "NGROK_EDGE"), NoEffect("ngrok tunnels are not supported", ("false",))
    ),
    "TS_JOB_QUEUE_SIZE": Fills("max_concurrent_requests"),
    "TS_MAX_REQUEST_SIZE": Fills("max_body_bytes", read_bytes),
    "TS_MAX_RESPONSE_SIZE": OPTIONS["max_output_size"],
    "TS_INSTALL_PY_DEP_PER_MODEL": NO_CUSTOM_CODE,
    "TS_DEFAULT_WORKERS_PER_MODEL": NO_WORKERS,
    "TS_DEFAULT_RESPONSE_TIMEOUT": NO_TIMEOUT,
    "TS_DEFAULT_STARTUP_TIMEOUT": NO_LOAD_TIMEOUT,
    "TS_DISABLE_TOKEN_AUTHORIZATION": NoEffect("tokens are not required; see api_key", ("true",)),
    "TS_METRICS_MODE": NoEffect("metrics are on /metrics", ("prometheus",)),
    "MMS_JOB_QUEUE_SIZE": Fills("max_concurrent_requests"),
    "MMS_MAX_REQUEST_SIZE": Fills("max_body_bytes", read_bytes),
    "MMS_MAX_RESPONSE_SIZE": OPTIONS["max_output_size"],
    "MMS_DEFAULT_WORKERS_PER_MODEL": NO_WORKERS,
    **dict.fromkeys(("MMS_DEFAULT_RESPONSE_TIMEOUT", "MMS_DEFAULT_RESPONSE_TIMEOUT_SECONDS"), NO_TIMEOUT),
    "TOKENIZER_CONFIG_PATH": NoEffect("the tokenizer of the model is used"),
    "DISABLE_GRAMMAR_SUPPORT": NoEffect("grammars are always supported", ("false", "0")),
    "MAX_CLIENT_BATCH_SIZE": NoEffect("a request has one prompt"),
    "LORA_ADAPTERS": Fills("adapter"),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": Fills("allow_runtime_lora_updating"),
    "USAGE_STATS": NoEffect("usage statistics are never sent", ("off",)),
    "ENABLE_PREFILL_LOGPROBS": ALWAYS,
    **dict.fromkeys(
        ("AIP_HTTP_PORT", "AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE"), NoEffect("Vertex AI's routes are not served")
    ),
}
"""Full names of environment variables; if two set the same field, the first one counts."""

GENERAL_NAMES = frozenset(
    {
        "API_KEY",
        "DTYPE",
        "HOSTNAME",
        "JSON_OUTPUT",
        "KV_CACHE_DTYPE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "MAX_BATCH_SIZE",
        "MODEL_ID",
        "NGROK",
        "NGROK_AUTHTOKEN",
        "NGROK_EDGE",
        "OTLP_ENDPOINT",
        "OTLP_SERVICE_NAME",
        "PAYLOAD_LIMIT",
        "PORT",
        "PREDICT_TIMEOUT",
        "PROMETHEUS_PORT",
        "QUANTIZE",
        "REVISION",
        "SHARDED",
        "USAGE_STATS",
    }
)
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
