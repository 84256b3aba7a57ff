"""
Command line options generated from the fields of `ServerSettings`: name, help, default and environment variable.

The values stay text: `settings.server_settings` reads them by the field's rule, so that a bad flag is refused in the
same words as a bad environment variable.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import click

from headrace.serving.settings.container_meanings import FieldParts
from headrace.serving.settings.container_values import ROPE_FLAGS, WHOLE_ROPE
from headrace.serving.settings.docs import SettingRow, setting_rows
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.settings.values import flag_name
from headrace.tools.cli.command import BriefOption, placeholder_of
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
    "hf_overrides": "vLLM's overrides of the config; merged into --rope, and nothing else of them is used.",
}

_LINK = re.compile(r"\[\w+\]\(([\w./-]+)(?:#[\w-]+)?\)")
_NAME = re.compile(r"`([a-z_]+)`")


def setting_options(*names: str) -> Decorator:
    """Add an option for each named setting; by default for all except `model`, which is an argument."""
    return _options(row for row in setting_rows() if (row.name in names if names else row.name != "model"))


revision_option = click.option(
    "--revision", metavar="REVISION", help="Branch, tag or commit of a Hub model.  [default: its main branch]"
)
"""For commands without other settings."""


def platform_options() -> Decorator:
    return _options(setting_rows(PlatformSettings))


def groups_of(kind: type = ServerSettings) -> dict[str, list[str]]:
    """Return the names of options of settings by the title of their group."""
    groups: dict[str, list[str]] = {}
    for row in setting_rows(kind):
        groups.setdefault(row.group, []).extend([row.name, *(_ROPE_HELP if row.name == "rope" else ())])
    return groups


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
    def by_flags(text: str) -> str:
        """Replace links by paths, and the names of other settings by their options."""
        return _NAME.sub(lambda name: f"`{flags.get(name[1], name[1])}`", _LINK.sub(r"docs/\1", text))

    about, default = by_flags(row.help), by_flags(row.default_text or row.default_note)
    choices = row.rule.choices
    word = placeholder_of(row.flag, choices) or f"[{'|'.join(choices)}]" if choices else row.rule.placeholder
    facts = [f"one of {', '.join(choices)}"] if choices and not word.startswith("[") else []
    facts += [f"default: {default}"] if default else []
    option: dict[str, Any] = {
        "cls": BriefOption,
        "brief": f"{about.split('. ')[0].rstrip('.')}.{_bracketed(facts)}",
        "help": f"{about}{_bracketed([*facts, f'env: {row.env}'])}",
        "default": None,
    }
    if row.rule.is_flag:
        return click.option(f"{row.flag}/--no-{row.flag.removeprefix('--')}", row.name, **option)
    option["metavar"] = word or row.name.rpartition("_")[2].upper()
    return click.option(row.flag, row.name, multiple=row.rule.is_repeatable, **option)


def _bracketed(facts: list[str]) -> str:
    return f"  [{'; '.join(facts)}]" if facts else ""
