"""YAML and TOML that people write or copy: read within bounds, whatever their aliases and numbers stand for."""

import tomllib
from collections.abc import Callable
from typing import Any, Final

from headrace.core.errors import SettingsError

_MAX_VALUES: Final = 100_000
_MAX_INTEGER: Final = 1 << 64
"""Larger ones in hexadecimal are read, but Python refuses to write one of 4,300 digits."""
_ERRORS: Final = (ValueError, RecursionError)
"""Errors of parsers: dates and integers that Python does not have, and nesting."""


def read_yaml_mapping(text: str, source: str, **facts: str) -> dict[str, Any]:
    """
    Read the content of a YAML file; an empty one is an empty mapping.

    Raises:
        SettingsError: it is not YAML, not a mapping, or its values are too many or too large; it has the `facts`.
    """
    import yaml

    def load(text: str) -> Any:
        try:
            return yaml.safe_load(text)
        except (AttributeError, LookupError) as error:  # of PyYAML's constructors, for `!!timestamp x` and `!!bool x`
            raise ValueError("a value does not fit the tag before it") from error

    loaded = _read(load, text, f"{source} is not YAML", facts, (yaml.YAMLError, *_ERRORS))
    if loaded is not None and not isinstance(loaded, dict):
        raise SettingsError(
            f"{source} is {type(loaded).__name__}, not a mapping; expected keys and values, such as `minWorkers: 1`.",
            **facts,
        )
    return loaded or {}


def read_toml(text: str, source: str, **facts: str) -> dict[str, Any]:
    """
    Read the content of a TOML file.

    Raises:
        SettingsError: it is not TOML, or its values are too many or too large; it has the `facts`.
    """
    loaded: dict[str, Any] = _read(tomllib.loads, text, f"{source} is not TOML", facts, _ERRORS)
    return loaded


def _read(
    load: Callable[[str], Any], text: str, broken: str, facts: dict[str, str], errors: tuple[type[Exception], ...]
) -> Any:
    try:
        loaded = load(text)
    except errors as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SettingsError(f"{broken}: {reason}.", **facts) from error
    if excess := _excess(loaded):
        raise SettingsError(f"{broken} within limits: it has {excess}.", **facts)
    return loaded


def _excess(loaded: object) -> str:
    """Return what is too much: values behind aliases count each time, as a page of YAML can stand for terabytes."""
    waiting, num_values = [loaded], 0
    while waiting:
        value = waiting.pop()
        num_values += 1
        if num_values > _MAX_VALUES:
            return f"more than {_MAX_VALUES} values, aliases expanded; expected fewer"
        if isinstance(value, int) and abs(value) >= _MAX_INTEGER:
            return "an integer of more than 64 bits; expected a smaller one"
        if isinstance(value, dict):
            waiting.extend((*value, *value.values()))
        elif isinstance(value, list):
            waiting.extend(value)
    return ""
