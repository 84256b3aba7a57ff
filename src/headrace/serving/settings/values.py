"""
Parsing of settings from text: flags, environment variables, properties.

Every command that has settings refuses a bad value, or an unknown variable, with the same message. It suggests the
known name that a misspelt or shortened one most likely means.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from headrace.core.errors import SettingsError
from headrace.serving.settings.rules import Rule

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ENV_PREFIX = "HEADRACE_"
PLATFORM_PREFIX = "HEADRACE_UP_"
"""Settings of `headrace up` (`settings.platform_settings`)."""
_LOOSE = 0.6
"""Similarity needed for a hint in an error, where a wrong hint does no harm."""
_MIN_PREFIX_CHARS = 6


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def env_name(name: str) -> str:
    return ENV_PREFIX + name.upper()


def rules_of(kind: type) -> dict[str, Rule]:
    return {spec.name: spec.metadata["rule"] for spec in fields(kind)}


def masked_repr(settings: "DataclassInstance") -> str:
    """Return the `repr` of a settings object, with the values of secrets masked."""
    shown = []
    for spec in fields(settings):
        value = getattr(settings, spec.name)
        is_masked = spec.metadata["rule"].is_secret and value is not None
        shown.append(f"{spec.name}={'***' if is_masked else repr(value)}")
    return f"{type(settings).__name__}({', '.join(shown)})"


def text_of(value: object) -> str:
    """Return a value from the command line as text; lists are joined by commas."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def read_value(rule: Rule, raw: str, *, name: str, source: str, is_own: bool = True) -> Any:
    """
    Read the setting `name` from the text of `source`: a flag, variable or property.

    If that is another server's name, and not Headrace's own one (`is_own`), an error adds the flag.

    Raises:
        SettingsError: the text is not as expected.
    """
    try:
        return rule.read(raw)
    except ValueError:
        shown = "a value that cannot be read" if rule.is_secret else repr(raw)
        near = near_name(raw.strip(), rule.choices, cutoff=_LOOSE)
        hint = f" Did you mean {near}?" if near else ""
        via = "" if is_own else f" (read as {flag_name(name)})"
        message = f"{source} is {shown}{via}; expected {rule.expected}.{hint}"
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
    Return the values of the variables that begin with `prefix`; an empty one counts as not set.

    Names in `foreign`, or with `foreign_prefix`, are no settings of this command, whose `--help-all` lists its own.

    Raises:
        SettingsError: a variable is unknown, or its value is not as expected.
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
            hint = f" Did you mean {prefix}{near.upper()}?" if near else f" `{command} --help-all` lists the settings."
            raise SettingsError(f"{variable} is not a setting.{hint}", name=variable)
        if raw.strip():
            name = known[variable]
            values[name] = read_value(rules[name], raw, name=name, source=variable)
    return values


def near_name(word: str, known: Iterable[str], *, cutoff: float = 0.75) -> str | None:
    """
    Return the known name nearest to `word`, or None.

    Case and separators are ignored. A name that extends `word` (`max_rolling_batch_size` for `max_rolling_batch`) is
    preferred to a similar one; of several the first in the order of `known` wins. Pass the names without a common
    prefix, which would make all of them similar.
    """
    names: dict[str, str] = {}
    for name in known:
        names.setdefault(_plain(name), name)
    plain = _plain(word)
    if plain in names:
        return names[plain]
    if len(plain) >= _MIN_PREFIX_CHARS:
        shortened = word.lower()
        for name in names.values():
            if name.lower().startswith((f"{shortened}_", f"{shortened}-", f"{shortened}.")):
                return name
    near = get_close_matches(plain, names, n=1, cutoff=cutoff)
    return names[near[0]] if near else None


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character not in "_-.")
