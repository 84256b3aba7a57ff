"""
Merging of the sources of server settings.

`load_settings` fills `ServerSettings` from these sources, in order of precedence: command line flags, `HEADRACE_*`,
files in the model's folder, names of other containers (`settings.container_names`), defaults. It reads neither the
process environment nor the disk: callers pass both.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.settings.container_names import Notice, read_container_names
from headrace.settings.file_guard import FileGuard
from headrace.settings.server_checks import check_together
from headrace.settings.server_settings import (
    ENV_PREFIX,
    PLATFORM_PREFIX,
    ServerSettings,
    env_name,
    setting_names,
    setting_rule,
)
from headrace.settings.values import flag_name, read_environment, read_value, text_of

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
    values = _own_env(env)
    values |= {
        name: _read(name, flag_name(name), text_of(value))
        for name, value in overrides.items()
        if value not in (None, ())  # an option that may be repeated and was not given
    }
    is_container = values.get("container", False)
    values.setdefault("trust_model_files", is_container)
    on_gpu &= values.get("device") != "cpu" and values.get("backend") != "native"
    guard = None if values["trust_model_files"] else FileGuard(folder, frozenset(values))
    foreign = read_container_names(
        env, properties or {}, model_config or {}, container=is_container, on_gpu=on_gpu, guard=guard
    )
    for name, (source, raw) in foreign.values.items():
        if name not in values:
            values[name] = _read(name, source, raw)
    notices = list(foreign.notices)
    if is_container:
        values.setdefault("host", "0.0.0.0")  # noqa: S104 -- a container's port is published by its platform
    if values.get("dialect", "auto") == "auto":
        by_files = "lmi-17" if foreign.is_lmi else "torchserve" if model_config else "tgi-3"
        is_toolkit = foreign.values.get("task", ("", ""))[0] == "HF_TASK" and values["task"] in ("features", "score")
        values["dialect"] = "hf-toolkit" if is_toolkit else by_files
    values.setdefault("enable_lora", bool(values.get("adapter")))
    settings = ServerSettings(**values)
    if settings.smoothquant_alpha is not None and settings.dtype != "smoothquant":
        name = foreign.values.get("smoothquant_alpha", ("smoothquant_alpha", ""))[0]
        why = "it is for dtype smoothquant (option.quantize=smoothquant)"
        notices.append(Notice(name, "ignored", f"{name} has no effect: {why}."))
    check_together(settings)
    return settings, notices


def _own_env(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of `HEADRACE_*`."""
    rules_by_name = {name: setting_rule(name) for name in setting_names()}
    return read_environment(
        env,
        rules_by_name,
        prefix=ENV_PREFIX,
        command="headrace serve",
        foreign=FOREIGN_ENV_NAMES,
        foreign_prefix=PLATFORM_PREFIX,
    )


def _read(name: str, source: str, raw: str) -> Any:
    """Parse `raw` by the rule of the field `name`; an error names the source of the value."""
    is_own = source in (flag_name(name), env_name(name))
    return read_value(setting_rule(name), raw, name=name, source=source, is_own=is_own)
