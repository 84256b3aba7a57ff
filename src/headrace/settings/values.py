"""
Values of settings out of texts: flags, environment variables, properties.

Every command that has settings refuses a bad value, and an unknown variable, in the same words.
"""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from headrace.core.errors import SettingsError
from headrace.settings.near_names import near_name
from headrace.settings.rules import Rule

_LOOSE = 0.6
"""Closeness of a hint in an error, where a far one does no harm."""


def flag_name(name: str) -> str:
    """The command line flag of the setting `name`."""
    return "--" + name.replace("_", "-")


def rules_of(kind: type) -> dict[str, Rule]:
    """How each field of a settings class is read."""
    return {spec.name: spec.metadata["rule"] for spec in fields(kind)}


def text_of(value: object) -> str:
    """A value from the command line as text: lists are joined by commas."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def read_value(rule: Rule, raw: str, *, name: str, source: str, is_own: bool = True) -> Any:
    """
    Read the setting `name` from `raw`.

    Args:
        rule: how.
        raw: the text.
        name: of the field.
        source: where the text came from, as people know it.
        is_own: whether `source` is a name of ours; another server's name is told together with ours.

    Raises:
        SettingsError: the text is not what is wanted; says what is.
    """
    try:
        return rule.read(raw)
    except ValueError:
        shown = "a value that cannot be read" if rule.is_secret else repr(raw)
        near = near_name(raw.strip(), rule.choices, cutoff=_LOOSE)
        hint = f" Did you mean {near}?" if near else ""
        via = "" if is_own else f" (read as {flag_name(name)})"
        message = f"{source} is {shown}{via}; wanted: {rule.wanted}.{hint}"
        raise SettingsError(message, name=name, source=source) from None


def read_environment(
    env: Mapping[str, str],
    rules: Mapping[str, Rule],
    *,
    prefix: str,
    command: str,
    foreign: Collection[str] = (),
    foreign_prefix: str | None = None,
) -> dict[str, Any]:
    """
    The values of the variables that begin with `prefix`; an empty one counts as not set.

    Args:
        env: the environment.
        rules: of the fields.
        prefix: of the variables.
        command: whose `--help` lists the settings.
        foreign: names with the prefix that are not settings of this command.
        foreign_prefix: all names that begin so are not either.

    Raises:
        SettingsError: a variable is not known, or its value is not what is wanted.
    """
    values: dict[str, Any] = {}
    known = {prefix + name.upper(): name for name in rules}
    for variable, raw in env.items():
        if not variable.startswith(prefix) or variable in foreign:
            continue
        if foreign_prefix is not None and variable.startswith(foreign_prefix):
            continue
        if variable not in known:
            near = near_name(variable.removeprefix(prefix), rules, cutoff=_LOOSE)
            hint = f" Did you mean {prefix}{near.upper()}?" if near else f" `{command} --help` lists the settings."
            raise SettingsError(f"{variable} is not a setting.{hint}", name=variable)
        if raw.strip():
            name = known[variable]
            values[name] = read_value(rules[name], raw, name=name, source=variable)
    return values
