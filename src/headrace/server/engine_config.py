"""The engine's part of the server's settings."""

from dataclasses import fields
from typing import Any

from headrace.core.generation import RequestLimits
from headrace.engine.config import EngineConfig
from headrace.settings.server_settings import ServerSettings, setting_names


def engine_config(settings: ServerSettings) -> EngineConfig:
    """Return what the settings ask of the engine, whose fields have the names of the settings."""
    names = {field.name for field in fields(EngineConfig)} & set(setting_names())
    values: dict[str, Any] = {name: getattr(settings, name) for name in names}
    return EngineConfig(
        **values, max_waiting_seqs=settings.max_concurrent_requests, request_limits=request_limits(settings)
    )


def request_limits(settings: ServerSettings) -> RequestLimits:
    """Return what one request may ask for, for the dialects and for the engine."""
    return RequestLimits(
        max_best_of=settings.max_best_of,
        max_stop_sequences=settings.max_stop_sequences,
        max_top_n_tokens=settings.max_top_n_tokens,
    )
