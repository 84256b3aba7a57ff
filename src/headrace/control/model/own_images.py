"""
Own images: what the user wrote down about images that Headrace does not know. Pure; the caller reads the file.

    [images."team/server"]                                      # any registry, any tag
    command = "python -m server --port {port} --model {model}"

    [images."123456789012.dkr.ecr.*.amazonaws.com/llm:*"]       # our model server, as another container
    dialect = "lmi-0.26"
    options = { dtype = "w8a8" }
    environment = { OPTION_MAX_MODEL_LEN = "2048" }
"""

import shlex
import tomllib
from reprlib import repr as short
from typing import Any

from headrace.control.model.images import OwnImage
from headrace.core.errors import SettingsError
from headrace.settings.near_names import near_name
from headrace.settings.server_settings import setting_names, setting_rule
from headrace.settings.values import read_value

_KEYS = ("command", "dialect", "options", "environment")
_EXAMPLE = '[images."team/server"] with command = "server --port {port}"'


def read_own_images(text: str, *, source: str) -> dict[str, OwnImage]:
    """
    Read the TOML text of `source` (its name is for errors only).

    Raises:
        SettingsError: not TOML, an unknown key, or a value that is not what is wanted.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{source} is not TOML: {error}.", name="images") from error
    stray = [key for key in document if key != "images"]
    tables = document.get("images", {})
    if stray or not isinstance(tables, dict):
        raise SettingsError(f"{source} should hold only tables such as {_EXAMPLE}.", name="images")
    return {name: _image(table, where=f'images."{name}" in {source}') for name, table in tables.items()}


def _image(table: Any, *, where: str) -> OwnImage:
    if not isinstance(table, dict):
        raise SettingsError(f"{where} is not a table; wanted: {_EXAMPLE}.", name="images")
    for key in table:
        if key not in _KEYS:
            near = near_name(key, _KEYS, cutoff=0.6)
            hint = f" Did you mean {near}?" if near else f" Known are {', '.join(_KEYS)}."
            raise SettingsError(f"{where}: {key} is not known.{hint}", name="images")
    command = _command(table.get("command"), where=where)
    if command and ("dialect" in table or "options" in table):
        raise SettingsError(
            f"{where} has a command, and dialect or options, which are for Headrace's own model server. Keep one.",
            name="images",
        )
    options = _texts(table.get("options", {}), where=f"{where}: options")
    for name, value in options.items():
        _check_option(name, value, where=where)
    dialect = str(table.get("dialect", "auto"))
    _check_option("dialect", dialect, where=where)
    return OwnImage(
        command=command,
        dialect=dialect,
        options=options,
        environment=_texts(table.get("environment", {}), where=f"{where}: environment"),
    )


def _command(value: Any, *, where: str) -> tuple[str, ...]:
    """A command line: one text, split as a shell splits it, or its words."""
    wanted = f"{where}: command is {short(value)}; wanted: a command line, or a list of its words."
    if value is None:
        return ()
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise SettingsError(f"{wanted} ({error})", name="images") from error
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise SettingsError(wanted, name="images")
    return tuple(words)


def _texts(value: Any, *, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SettingsError(f'{where} is {short(value)}; wanted: {{ NAME = "value" }}.', name="images")
    texts = {}
    for name, one in value.items():
        if isinstance(one, bool):
            texts[name] = str(one).lower()
        elif isinstance(one, str | int | float):
            texts[name] = str(one)
        else:
            raise SettingsError(f"{where}: {name} is {short(one)}; wanted: a text or a number.", name="images")
    return texts


def _check_option(name: str, value: str, *, where: str) -> None:
    """Refuse now what `headrace serve` would refuse in every worker."""
    if name not in setting_names():
        near = near_name(name, setting_names(), cutoff=0.6)
        hint = f" Did you mean {near}?" if near else " `headrace serve --help` lists them."
        raise SettingsError(f"{where}: {name} is no setting of `headrace serve`.{hint}", name="images")
    read_value(setting_rule(name), value, name=name, source=f"{where}: {name}")
