"""The configuration of the engine, from the settings of a server."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from headrace.core.errors import SettingsError
from headrace.core.generation import RequestLimits
from headrace.core.progress import Progress, no_progress
from headrace.inference.engine.config import EngineConfig, ModelSource
from headrace.serving.settings.server_settings import ServerSettings, setting_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.inference.backends.choice import BackendChoice
    from headrace.inference.engine.backend import Backend
    from headrace.inference.engine.core.observer import EngineObserver
    from headrace.inference.models.sources import Located

_CODE_ARGUMENTS: Final = frozenset(
    (
        *("trust_remote_code", "logits_processors", "reasoning_parser_plugin", "tool_parser_plugin"),
        *("worker_cls", "worker_extension_cls", "scheduler_cls"),
    )
)
"""Arguments of vLLM's engine that name Python code. Source: vLLM `engine/arg_utils.py`."""


def load_engine(
    settings: ServerSettings,
    progress: Progress = no_progress,
    *,
    observer: "EngineObserver | None" = None,
    on_choice: "Callable[[BackendChoice], None] | None" = None,
    located: "Located | None" = None,
) -> "Backend":
    """
    Load the model that the settings name and return its backend, which is not started.

    `on_choice` is called with the chosen backend before; `located` is the model if it was found already. Raises
    `UserError` if the model cannot be found, read or run, a setting is invalid or memory is insufficient.
    """
    from headrace.inference.backends.loading import load_backend

    reason = trusting_setting(settings)
    if settings.sandbox == "require" and reason:
        raise SettingsError(
            f"sandbox is require and {reason}; expected none of them here: code of the checkpoint would run in this "
            "process, which is in no sandbox. Remove one of them, or use `headrace serve`.",
            name=reason.partition(" ")[0],
        )
    source = model_source(settings)
    source = source if located is None else replace(source, model=located)
    return load_backend(source, engine_config(settings), progress, observer=observer, on_choice=on_choice)


def trusting_setting(settings: ServerSettings) -> str:
    """Return the setting by which code of a checkpoint may run, as the subject of a sentence; empty if none does."""
    if settings.trust_remote_code:
        return "trust_remote_code is true"
    names = {name.strip().lstrip("-").replace("-", "_") for name in settings.vllm_args or ()}
    found = sorted(names & _CODE_ARGUMENTS)
    return f"vllm_args has {found[0]}" if found else ""


def choose_engine(settings: ServerSettings, progress: Progress) -> "tuple[Located, BackendChoice]":
    """Find the model that the settings name, and choose its backend; raise as `load_engine` does."""
    from headrace.inference.backends.loading import choose

    located, choice, _ = choose(model_source(settings), engine_config(settings), progress)
    return located, choice


def model_source(settings: ServerSettings) -> ModelSource:
    return ModelSource(**_settings_of(ModelSource, settings))


def engine_config(settings: ServerSettings) -> EngineConfig:
    return EngineConfig(
        **{**_settings_of(EngineConfig, settings), "max_loras": num_adapter_slots(settings)},
        max_waiting_seqs=settings.max_concurrent_requests,
        request_limits=request_limits(settings),
    )


def num_adapter_slots(settings: ServerSettings) -> int:
    """Return the number of adapters that may be loaded at the same time."""
    return max(settings.max_loras, len(settings.adapter)) if settings.enable_lora else 0


def request_limits(settings: ServerSettings) -> RequestLimits:
    """Return the upper bounds of one request, for the dialects and the engine."""
    return RequestLimits(**_settings_of(RequestLimits, settings))


def _settings_of(kind: type, settings: ServerSettings) -> dict[str, Any]:
    """Return the values of a dataclass's fields that have the names of settings."""
    names = {field.name for field in fields(kind)} & set(setting_names())
    return {name: getattr(settings, name) for name in names}
