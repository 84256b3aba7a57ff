"""
Merging of the sources of server settings.

`load_settings` fills `ServerSettings` from these sources, in order of precedence: command line flags, `HEADRACE_*`,
files in the model's folder, names of other containers (`settings.container_names`), defaults. It reads neither the
process environment nor the disk: callers pass both.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.core.errors import SettingsError
from headrace.serving.settings.container_names import ContainerSettings, Notice, read_container_names
from headrace.serving.settings.file_guard import FileGuard
from headrace.serving.settings.rules import is_loopback, split_address
from headrace.serving.settings.server_settings import ServerSettings, setting_rule
from headrace.serving.settings.shutdown import check_shutdown
from headrace.serving.settings.values import (
    ENV_PREFIX,
    PLATFORM_PREFIX,
    env_name,
    flag_name,
    read_environment,
    read_value,
    rules_of,
    text_of,
)

CODE_ENV_NAMES = frozenset({"HEADRACE_ALLOW_CLIENT_PICKLES", "HEADRACE_ERROR_TRACEBACK"})
"""Variables that are passed on to models' own code."""
FOREIGN_ENV_NAMES = CODE_ENV_NAMES | {
    "HEADRACE_HOME",
    "HEADRACE_MODEL_FOLDER",
    "HEADRACE_PYTHON",
    "HEADRACE_TEST_CACHE",
    "HEADRACE_URL",
}
"""Variables with the prefix that are not settings of the server."""


def load_settings(
    overrides: Mapping[str, object],
    env: Mapping[str, str],
    properties: Mapping[str, str] | None = None,
    model_config: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
    on_gpu: bool = False,
) -> tuple[ServerSettings, list[Notice]]:
    """
    Merge the sources and check the result.

    Args:
        overrides: field name → value, from the command line; None: not given.
        env: the environment.
        properties: the content of `serving.properties`, if there is one.
        model_config: the content of `model-config.yaml`, if there is one (`settings.model_folder.parse_model_config`).
        folder: the model's folder, which paths in its files may not leave unless they are trusted.
        on_gpu: whether a GPU and a backend for it are there; the settings `device` and `backend` take precedence.

    Returns:
        The settings, and notices about names that were applied, have no effect, or are unknown.

    Raises:
        SettingsError: a value is not as expected, a `HEADRACE_` name is unknown, or values contradict each other.
    """
    values = read_environment(
        env,
        rules_of(ServerSettings),
        prefix=ENV_PREFIX,
        command="headrace serve",
        foreign=FOREIGN_ENV_NAMES,
        foreign_prefix=PLATFORM_PREFIX,
    )
    # Flags come after the environment, so that they overwrite its values.
    values |= {
        name: _read(name, flag_name(name), text_of(value))
        for name, value in overrides.items()
        if value not in (None, ())  # an option that may be repeated and was not given
    }
    is_container = values.get("container", False)
    values.setdefault("trust_model_files", is_container)
    # Foreign names depend on the device, and on what our own settings already say about trust.
    on_gpu &= values.get("device") != "cpu" and values.get("backend") != "native"
    guard = None if values["trust_model_files"] else FileGuard(folder, frozenset(values))
    foreign = read_container_names(
        env, properties or {}, model_config or {}, container=is_container, on_gpu=on_gpu, guard=guard
    )
    for name, (source, raw) in foreign.values.items():
        if name not in values:
            values[name] = _read(name, source, raw)
    if is_container:
        values.setdefault("host", "0.0.0.0")  # noqa: S104 -- a container's port is published by its platform
    if values.get("dialect", "auto") == "auto":
        values["dialect"] = _dialect(foreign, values.get("task"), has_model_config=bool(model_config))
    values.setdefault("enable_lora", bool(values.get("adapter")))
    settings = ServerSettings(**values)
    notices = list(foreign.notices)
    if settings.smoothquant_alpha is not None and settings.dtype != "smoothquant":
        name = foreign.values.get("smoothquant_alpha", ("smoothquant_alpha", ""))[0]
        why = "it is for dtype smoothquant (option.quantize=smoothquant)"
        notices.append(Notice(name, "ignored", f"{name} has no effect: {why}."))
    _check_together(settings)
    return settings, notices


def _dialect(foreign: ContainerSettings, task: str | None, *, has_model_config: bool) -> str:
    """Return the dialect of the server for which the configuration was written: the names that it has tell which."""
    if foreign.values.get("task", ("", ""))[0] == "HF_TASK" and task in ("features", "score"):
        return "hf-toolkit"
    return "lmi-17" if foreign.is_lmi else "torchserve" if has_model_config else "tgi-3"


def _read(name: str, source: str, raw: str) -> Any:
    """Parse `raw` by the rule of the field `name`; an error names the source of the value."""
    is_own = source in (flag_name(name), env_name(name))
    return read_value(setting_rule(name), raw, name=name, source=source, is_own=is_own)


def _check_together(settings: ServerSettings) -> None:
    if not settings.model and settings.models is None:
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
