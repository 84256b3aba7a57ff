"""An example value of each setting, as text and as parsed."""

from pathlib import Path

MODEL = {"model": "echo"}


EXAMPLES = {
    "model": ("org/name", "org/name"),
    "revision": ("v2", "v2"),
    "served_model_name": ("mine", "mine"),
    "task": ("embed", "embed"),
    "pooling": ("mean", "mean"),
    "host": ("127.0.0.2", "127.0.0.2"),
    "port": ("9001", 9001),
    "api_key": ("s3cret", "s3cret"),
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
    "rolling_batch": ("auto", "auto"),
    "output_formatter": ("jsonlines", "jsonlines"),
    "tgi_compat": ("true", True),
    "chat_template": ("{{ messages }}", "{{ messages }}"),
    "enable_prefix_caching": ("false", False),
    "max_concurrent_requests": ("7", 7),
    "enable_lora": ("true", True),
    "adapter": ("a=/tmp/a,b=/tmp/b", ("a=/tmp/a", "b=/tmp/b")),
    "max_loras": ("8", 8),
    "max_lora_rank": ("64", 64),
    "allow_runtime_lora_updating": ("true", True),
    "adapter_folders": ("/tmp/a,/tmp/b", ("/tmp/a", "/tmp/b")),
    "max_best_of": ("3", 3),
    "max_stop_sequences": ("2", 2),
    "max_top_n_tokens": ("4", 4),
    "default_max_new_tokens": ("100", 100),
    "shutdown_grace_s": ("12", 12.0),
    "shutdown_delay_s": ("3", 3.0),
    "cors_allow_origins": ("https://a.example,https://b.example", ("https://a.example", "https://b.example")),
    "cache_dir": ("cache", Path("cache")),
}
