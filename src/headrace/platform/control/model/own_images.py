"""
Own images: the user's configuration of images that Headrace does not know. Pure; the caller reads the file.

    [images."team/server"]                                      # any registry, any tag
    command = "python -m server --port {port} --model {model}"

    [images."123456789012.dkr.ecr.*.amazonaws.com/llm:*"]       # our model server, as another container
    dialect = "lmi-0.26"
    options = { dtype = "w8a8" }
    environment = { OPTION_MAX_MODEL_LEN = "2048" }

    [images."team/*"]                                           # the image itself, with Docker or Podman
    container = true
"""

import shlex
from reprlib import repr as short
from typing import Any

from headrace.core.errors import SettingsError
from headrace.platform.control.model.images import OwnImage
from headrace.serving.settings.documents import read_toml
from headrace.serving.settings.server_settings import setting_names, setting_rule
from headrace.serving.settings.values import near_name, read_value

_KEYS = ("command", "container", "dialect", "options", "environment")
_EXAMPLE = '[images."team/server"] with command = "server --port {port}"'


def read_own_images(text: str, *, source: str) -> dict[str, OwnImage]:
    """Parse the TOML text of the file `source`. Raises `SettingsError`, also for an invalid key or value."""
    document = read_toml(text, source, name="images")
    stray = [key for key in document if key != "images"]
    tables = document.get("images", {})
    if stray or not isinstance(tables, dict):
        raise SettingsError(f"{source} should contain only tables such as {_EXAMPLE}.", name="images")
    return {name: _image(table, where=f'images."{name}" in {source}') for name, table in tables.items()}


def _image(table: Any, *, where: str) -> OwnImage:
    if not isinstance(table, dict):
        raise SettingsError(f"{where} is not a table; expected {_EXAMPLE}.", name="images")
    for key in table:
        if key not in _KEYS:
            near = near_name(key, _KEYS, cutoff=0.6)
            hint = f" Did you mean {near}?" if near else f" Known are {', '.join(_KEYS)}."
            raise SettingsError(f"{where}: {key} is not known.{hint}", name="images")
    command = _command(table.get("command"), where=where)
    is_container = table.get("container", False)
    if not isinstance(is_container, bool):
        raise SettingsError(f"{where}: container is {short(is_container)}; expected true or false.", name="images")
    if is_container and set(table) - {"container", "environment"}:
        raise SettingsError(
            f"{where} is run as a container, and has a command, dialect or options, which are for processes. Keep one.",
            name="images",
        )
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
        is_container=is_container,
        dialect=dialect,
        options=options,
        environment=_texts(table.get("environment", {}), where=f"{where}: environment"),
    )


def _command(value: Any, *, where: str) -> tuple[str, ...]:
    """Return a command line given as a string, split as a shell does, or as a list of arguments."""
    wanted = f"{where}: command is {short(value)}; expected a command line, or a list of its arguments."
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
        raise SettingsError(f'{where} is {short(value)}; expected {{ NAME = "value" }}.', name="images")
    texts = {}
    for name, item in value.items():
        if isinstance(item, bool):
            texts[name] = str(item).lower()
        elif isinstance(item, str | int | float):
            texts[name] = str(item)
        else:
            raise SettingsError(f"{where}: {name} is {short(item)}; expected a string or a number.", name="images")
    return texts


def _check_option(name: str, value: str, *, where: str) -> None:
    """Refuse an option that `headrace serve` would refuse in every worker."""
    if name not in setting_names():
        near = near_name(name, setting_names(), cutoff=0.6)
        hint = f" Did you mean {near}?" if near else " `headrace serve --help-all` lists them."
        raise SettingsError(f"{where}: {name} is not a setting of `headrace serve`.{hint}", name="images")
    read_value(setting_rule(name), value, name=name, source=f"{where}: {name}")
