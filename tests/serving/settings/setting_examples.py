"""An example value of each setting, as text and as parsed."""

from pathlib import Path

from headrace.serving.settings.loading import load_settings

MODEL = {"model": "echo"}
CONTAINER = {**MODEL, "container": "true"}


EXAMPLES = {
    "model": ("org/name", "org/name"),
    "revision": ("v2", "v2"),
    "served_model_name": ("mine", "mine"),
    "task": ("embed", "embed"),
    "pooling": ("mean", "mean"),
    "host": ("127.0.0.2", "127.0.0.2"),
    "port": ("9001", 9001),
    "api_key": ("s3cret", "s3cret"),
    "management_address": ("[::1]:9081", "http://[::1]:9081"),
    "metrics_address": ("off", None),
    "dtype": ("bf16", "bf16"),
    "smoothquant_alpha": ("0.8", 0.8),
    "kv_dtype": ("int8", "int8"),
    "max_model_len": ("4096", 4096),
    "rope": ('{"rope_type": "yarn", "factor": 4}', {"rope_type": "yarn", "factor": 4}),
    "max_prompt_tokens": ("1024", 1024),
    "max_num_seqs": ("16", 16),
    "max_num_batched_tokens": ("512", 512),
    "max_kv_cache_tokens": ("8192", 8192),
    "max_draft_tokens": ("4", 4),
    "rolling_batch": ("lmi_dist", "lmi-dist"),
    "tensor_parallel_size": ("max", 0),
    "gpu_memory_utilization": ("0.5", 0.5),
    "enforce_eager": ("true", True),
    "step_timeout_s": ("12.5", 12.5),
    "batch_invariant": ("true", True),
    "trust_remote_code": ("true", True),
    "vllm_args": ('{"kv_cache_dtype": "fp8"}', {"kv_cache_dtype": "fp8"}),
    "output_formatter": ("jsonlines", "jsonlines"),
    "tgi_compat": ("true", True),
    "generation_config": ("vllm", "vllm"),
    "chat_template": ("{{ messages }}", "{{ messages }}"),
    "enable_prefix_caching": ("false", False),
    "prefix_cache_dir": ("/tmp/prefixes", Path("/tmp/prefixes")),
    "prefix_cache_disk_bytes": ("2GiB", 2 << 30),
    "max_concurrent_requests": ("7", 7),
    "enable_lora": ("true", True),
    "adapter": ("a=/tmp/a,b=/tmp/b", ("a=/tmp/a", "b=/tmp/b")),
    "max_loras": ("8", 8),
    "max_lora_rank": ("64", 64),
    "allow_runtime_lora_updating": ("true", True),
    "adapter_folders": ("/tmp/a,/tmp/b", ("/tmp/a", "/tmp/b")),
    "reasoning_end_message": ("Enough.", "Enough."),
    "max_best_of": ("3", 3),
    "max_stop_sequences": ("2", 2),
    "max_top_n_tokens": ("4", 4),
    "stored_responses_bytes": ("0", 0),
    "stored_responses_age_s": ("60", 60.0),
    "batch_bytes": ("1GiB", 1 << 30),
    "batch_folder": ("/tmp/batches", Path("/tmp/batches")),
    "default_max_new_tokens": ("100", 100),
    "shutdown_grace_s": ("12", 12.0),
    "stateful_sessions": ("false", False),
    "session_lifetime_s": ("60", 60.0),
    "shutdown_delay_s": ("3", 3.0),
    "cors_allow_origins": ("https://a.example,https://b.example", ("https://a.example", "https://b.example")),
    "allowed_hosts": ("devbox, *.Example.com", ("devbox", "*.example.com")),
    "threads": ("3", 3),
    "cache_dir": ("cache", Path("cache")),
    "event_webhook": ("https://d.example", "https://d.example"),
    "otlp_traces_endpoint": ("https://c.example", "https://c.example"),
}


def load_one(kind, name, value, *, on_gpu=False, **overrides):
    """Load the settings with one foreign name, in one of the places where it may stand."""
    given_here = {name: value}
    env, properties, config = (given_here if kind == source else {} for source in ("env", "properties", "model config"))
    return load_settings({**overrides, "container": "true"}, env, properties, config, on_gpu=on_gpu)
