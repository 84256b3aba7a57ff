"""The engine's part of the server's settings."""

from typing import Any

from headrace.engine.config import EngineConfig
from headrace.settings.server_settings import ServerSettings


def engine_config(settings: ServerSettings) -> EngineConfig:
    """What the settings ask of the engine; what they leave open keeps the engine's own default."""
    asked = {
        "revision": settings.revision,
        "served_model_name": settings.served_model_name,
        "dtype": settings.dtype,
        "smoothquant_alpha": settings.smoothquant_alpha,
        "kv_dtype": settings.kv_dtype,
        "max_model_len": settings.max_model_len,
        "max_prompt_tokens": settings.max_prompt_tokens,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "kv_cache_bytes": settings.kv_cache_bytes,
        "max_kv_cache_tokens": settings.max_kv_cache_tokens,
        "max_memory_bytes": settings.max_memory_bytes,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "max_draft_tokens": settings.max_draft_tokens,
        "max_queued_requests": settings.max_concurrent_requests,
        "max_best_of": settings.max_best_of,
        "max_logprobs": settings.max_top_n_tokens,
        "max_stop_strings": settings.max_stop_sequences,
        "threads": settings.threads,
        "isa": settings.isa,
        "chat_template": settings.chat_template,
        "cache_dir": settings.cache_dir,
    }
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if settings.max_itl_ms is not None:
        given["max_itl_ms"] = settings.max_itl_ms or None
    return EngineConfig(model=settings.model, **given)
