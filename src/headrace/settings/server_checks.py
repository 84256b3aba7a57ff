"""Checks of server settings that concern several values."""

from headrace.core.errors import SettingsError
from headrace.settings.addresses import is_loopback, split_address
from headrace.settings.server_settings import ServerSettings
from headrace.settings.shutdown import check_shutdown


def check_together(settings: ServerSettings) -> None:
    """Refuse values that contradict each other."""
    if not settings.model:
        raise SettingsError(
            "No model was named. Name one: `headrace serve smollm2`, or set HEADRACE_MODEL or HF_MODEL_ID.",
            name="model",
        )
    longest, prompt = settings.max_model_len, settings.max_prompt_tokens
    if longest is not None and prompt is not None and prompt >= longest:
        raise SettingsError(
            f"max_prompt_tokens is {prompt} and max_model_len is {longest}; the prompt must leave room for at least "
            "one token of the answer. Lower the first or raise the second.",
            name="max_prompt_tokens",
        )
    kv_tokens = settings.max_kv_cache_tokens
    if longest is not None and kv_tokens is not None and longest > kv_tokens:
        raise SettingsError(
            f"max_model_len is {longest} (MAX_TOTAL_TOKENS) and max_kv_cache_tokens is {kv_tokens} "
            "(MAX_BATCH_TOTAL_TOKENS); expected room for at least one whole context in the KV cache. Lower the first "
            "or raise the second.",
            name="max_kv_cache_tokens",
        )
    if settings.adapter and not settings.enable_lora:
        raise SettingsError("adapter is set and enable_lora is false. Remove one of them.", name="adapter")
    check_shutdown(settings.shutdown_delay_s, grace_s=settings.shutdown_grace_s)
    is_open = not is_loopback(settings.host) and settings.api_key is None
    if is_open and not settings.allow_anonymous and not settings.container:
        raise SettingsError(
            f"host is {settings.host}, which others on the network can reach, and there is no api_key. "
            "Set --api-key (or HEADRACE_API_KEY), or pass --allow-anonymous if all of them may use the server.",
            name="host",
        )
    for name in ("management_address", "metrics_address"):
        address = getattr(settings, name)
        if address is not None and not is_loopback(split_address(address)[0]) and settings.api_key is None:
            raise SettingsError(
                f"{name} is {address}, which others on the network can reach, and there is no api_key. Set --api-key "
                "(or HEADRACE_API_KEY), or use an address of this machine only, such as 127.0.0.1.",
                name=name,
            )
