"""
Documentation rows of the settings, one per field, generated from the fields.

The command line's help texts and the settings page of the docs come from here.
"""

import ast
import inspect
import itertools
import re
import textwrap
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from headrace.core.sizes import format_size
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.settings.rules import FileScope, Rule
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.settings.values import ENV_PREFIX, PLATFORM_PREFIX, flag_name

_PREFIXES: dict[type, str] = {ServerSettings: ENV_PREFIX, PlatformSettings: PLATFORM_PREFIX}
_GROUPS: dict[type, dict[str, str]] = {
    ServerSettings: {
        "model": "Model",
        "models": "Many models",
        "host": "Address and access",
        "dtype": "Formats and speed",
        "max_model_len": "Context, batching and memory",
        "enable_lora": "LoRA adapters",
        "handler": "The model's own code",
        "backend": "GPUs and other backends",
        "max_concurrent_requests": "Limits of requests",
        "shutdown_grace_s": "Shutdown, logs and metrics",
    },
    PlatformSettings: {
        "host": "Address and access",
        "data_dir": "Records and objects",
        "region": "AWS",
        "cluster": "Where models run",
        "hold_timeout_s": "Limits of requests",
        "processes": "Processes and shutdown",
        "log_format": "Logs and tracing",
    },
}
"""Titles of groups of settings, by the first setting of each."""
_DEFAULT = re.compile(r" ?Default: (.+?)\.(?= |$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """The documentation of one setting."""

    name: str
    flag: str
    env: str
    rule: Rule
    group: str
    default: object
    default_text: str
    """The default as text; empty if `default_note` describes it."""
    default_note: str
    """The default of a setting that is resolved at the start, in words."""
    help: str
    """Meaning, unit and the reason for the default, on one line; the first sentence stands alone."""
    is_for_files: bool
    """True if the files of a model may set it."""


@cache
def setting_rows(kind: type = ServerSettings) -> tuple[SettingRow, ...]:
    """Return one row for each field of a settings class and its bases, in the order of the groups."""
    rows, group = [], ""
    helps = _field_docstrings(kind)
    for spec in fields(kind):
        group = _GROUPS[kind].get(spec.name, group)
        note = _DEFAULT.search(helps[spec.name])
        rows.append(
            SettingRow(
                name=spec.name,
                flag=flag_name(spec.name),
                env=_PREFIXES[kind] + spec.name.upper(),
                rule=spec.metadata["rule"],
                group=group,
                default=spec.default,
                default_text="" if note else _default_text(spec.name, spec.default),
                default_note=note[1] if note else "",
                help=_DEFAULT.sub("", helps[spec.name]),
                is_for_files=spec.metadata["files"] is not FileScope.NEVER,
            )
        )
    order = list(_GROUPS[kind].values())
    return tuple(sorted(rows, key=lambda row: order.index(row.group)))


def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the string below each field, read from the source because dataclasses do not keep it."""
    docstrings: dict[str, str] = {}
    for base in kind.__mro__[:-1]:
        docstrings |= _own_docstrings(base)
    return docstrings


def _own_docstrings(kind: type) -> dict[str, str]:
    source = Path(inspect.getfile(kind)).read_text(encoding="utf-8")
    (body,) = [
        node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    ]
    docstrings = {}
    for statement, following in itertools.pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert isinstance(following, ast.Expr), f"{statement.target.id} has no docstring"
            assert isinstance(following.value, ast.Constant), f"{statement.target.id} has no docstring"
            docstrings[statement.target.id] = " ".join(textwrap.dedent(str(following.value.value)).split())
    return docstrings


def _default_text(name: str, default: object) -> str:
    if default in (None, "", ()):
        return ""
    if isinstance(default, bool):
        return "true" if default else "false"
    if name.endswith("_bytes") and isinstance(default, int):
        return format_size(default)
    return f"{default:g}" if isinstance(default, float) else str(default)
