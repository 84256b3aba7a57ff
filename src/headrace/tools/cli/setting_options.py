"""
Command line options generated from the fields of `ServerSettings`: name, help, default and environment variable.

The values stay text: `settings.server_settings` reads them by the field's rule, so that a bad flag is refused in the
same words as a bad environment variable.
"""

import os
import re
from collections.abc import Iterable, Mapping

import click

from headrace.serving.settings.container_meanings import FieldParts
from headrace.serving.settings.container_values import ROPE_FLAGS, WHOLE_ROPE
from headrace.serving.settings.docs import SettingRow, setting_rows
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.settings.values import flag_name
from headrace.tools.cli.group import Decorator, all_of

ENGINE_SETTINGS = (
    "revision",
    "backend",
    "device",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "enforce_eager",
    "batch_invariant",
    "trust_remote_code",
    "vllm_args",
    "dtype",
    "smoothquant_alpha",
    "kv_dtype",
    "max_model_len",
    "rope",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_bytes",
    "max_kv_cache_tokens",
    "max_memory_bytes",
    "threads",
    "isa",
    "enable_prefix_caching",
    "chat_template",
    "generation_config",
    "cache_dir",
)
"""The settings that apply without a server."""

_ROPE_HELP = {
    "rope_scaling": "vLLM's older form of --rope, or a type alone; merged into it.",
    "rope_theta": "Base of the rotary embedding; merged into --rope.",
    "hf_overrides": "vLLM's overrides of the config, of which the rotary embedding is merged into --rope.",
}

_LINK = re.compile(r"\[\w+\]\(([\w./-]+)\)")
_NAME = re.compile(r"`([a-z_]+)`")


def setting_options(*names: str) -> Decorator:
    """Add an option for each named setting; by default for all except `model`, which is an argument."""
    return _options(row for row in setting_rows() if (row.name in names if names else row.name != "model"))


def platform_options() -> Decorator:
    return _options(setting_rows(PlatformSettings))


def rope_options() -> Decorator:
    """Add vLLM's flags for the rotary embedding; `merge_rope` reads them."""
    return all_of(
        click.option(flag_name(name), name, metavar="JSON" if name != "rope_theta" else "THETA", help=about)
        for name, about in _ROPE_HELP.items()
    )


def merge_rope(options: Mapping[str, object]) -> dict[str, object]:
    """
    Return the options with vLLM's flags for the rotary embedding merged into `rope`, whose own keys win.

    Raises:
        SettingsError: a flag is malformed.
    """
    parts = FieldParts()
    for name, meaning in {"rope": WHOLE_ROPE, **ROPE_FLAGS}.items():
        raw = options.get(name)
        if isinstance(raw, str):
            parts.add(flag_name(name), meaning, raw.strip())
    others = {name: value for name, value in options.items() if name not in ROPE_FLAGS and name != "rope"}
    return {**others, **{name: text for name, (_, text) in parts.merged().items()}}


def _options(rows: Iterable[SettingRow]) -> Decorator:
    rows = list(rows)
    flags = {row.name: row.flag for row in rows}
    return all_of(_option(row, flags) for row in rows)


def engine_settings(model: str, options: Mapping[str, object]) -> ServerSettings:
    """
    Return the settings of an engine from the options and `HEADRACE_*` variables.

    Raises:
        SettingsError: a value is invalid.
    """
    overrides = {"model": model, **{name: options.get(name) for name in ENGINE_SETTINGS}}
    # No port is opened: HEADRACE_HOST=0.0.0.0, as an image sets it for servers, needs no key here.
    overrides["host"] = "127.0.0.1"
    # Names of containers such as HF_MODEL_ID are for servers.
    own = {name: value for name, value in os.environ.items() if name.startswith("HEADRACE_")}
    settings, _ = load_settings(overrides, own)
    return settings


def _option(row: SettingRow, flags: Mapping[str, str]) -> Decorator:
    linked = _LINK.sub(r"docs/\1", row.help)
    about = _NAME.sub(lambda name: f"`{flags.get(name[1], name[1])}`", linked)  # other settings by their options
    default = f"default: {row.default_text}; " if row.default_text else ""
    help_text = f"{about}  [{default}env: {row.env}]"
    if row.rule.is_flag:
        return click.option(f"{row.flag}/--no-{row.flag.removeprefix('--')}", row.name, default=None, help=help_text)
    if row.rule.is_repeatable:
        return click.option(row.flag, row.name, metavar="NAME=FOLDER", multiple=True, default=None, help=help_text)
    choices = f"[{'|'.join(row.rule.choices)}]" if row.rule.choices else ""
    return click.option(row.flag, row.name, metavar=choices or row.name.rpartition("_")[2].upper(), help=help_text)
