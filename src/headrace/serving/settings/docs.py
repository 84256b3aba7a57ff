"""
Documentation rows of the settings, one per field, generated from the fields.

The command line's help texts and the settings page of the docs come from here.
"""

import ast
import inspect
import itertools
import textwrap
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from headrace.core.sizes import format_size
from headrace.serving.settings.container_meanings import Meaning, parts_of
from headrace.serving.settings.container_tables import ENVIRONMENT, FLAGS, OPTIONS, PROPERTIES
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.settings.rules import FileScope, Rule
from headrace.serving.settings.server_settings import ENV_PREFIX, PLATFORM_PREFIX, ServerSettings
from headrace.serving.settings.values import flag_name

_PREFIXES: dict[type, str] = {ServerSettings: ENV_PREFIX, PlatformSettings: PLATFORM_PREFIX}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """The documentation of one setting."""

    name: str
    flag: str
    env: str
    rule: Rule
    default: object
    default_text: str
    """The default as text; empty if the help describes it."""
    help: str
    """Meaning, unit, default and why, on one line."""
    container_names: tuple[str, ...]
    """Names of other servers that set it."""
    is_for_files: bool
    """True if the files of a model may set it."""


@cache
def setting_rows(kind: type = ServerSettings) -> tuple[SettingRow, ...]:
    """Return one row for each field of a settings class, in order."""
    helps = _field_docstrings(kind)
    return tuple(
        SettingRow(
            name=spec.name,
            flag=flag_name(spec.name),
            env=_PREFIXES[kind] + spec.name.upper(),
            rule=spec.metadata["rule"],
            default=spec.default,
            default_text=_default_text(spec.name, spec.default),
            help=helps[spec.name],
            container_names=_container_names(spec.name) if kind is ServerSettings else (),
            is_for_files=spec.metadata["files"] is not FileScope.NEVER,
        )
        for spec in fields(kind)
    )


def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the string below each field, read from the source because dataclasses do not keep it."""
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


def _container_names(field: str) -> tuple[str, ...]:
    """Return the foreign names that set `field`, as users write them."""
    tables: tuple[tuple[dict[str, Meaning], str], ...] = (
        (ENVIRONMENT, "{}"),
        (OPTIONS, "option.{}"),
        (PROPERTIES, "{}"),
        *(
            ({key: meaning for key, meaning in flags.items() if OPTIONS.get(key) is not meaning}, f"{prefix}{{}}")
            for prefix, flags in FLAGS.items()
        ),
    )
    return tuple(
        spelling.format(key.upper() if spelling.startswith("SM_") else key)
        for table, spelling in tables
        for key, meaning in table.items()
        if any(part.field == field for part in parts_of(meaning))
    )
