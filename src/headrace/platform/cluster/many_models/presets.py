"""
The models of `headrace serve --models`: those of a folder, or of a file with settings for each.

A file is YAML or JSON: `models` maps names to settings, `defaults` has settings of all, and `folder` adds the models of
a folder. Settings have the names of `headrace serve`; what concerns the whole server is refused by name.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.core.errors import SettingsError
from headrace.serving.settings.documents import read_yaml_mapping
from headrace.serving.settings.model_folder import is_file, is_folder
from headrace.serving.settings.server_settings import setting_names
from headrace.serving.settings.values import near_name
from headrace_handler.stray_files import is_stray, listed

OF_SERVER: Final = frozenset(
    (
        *("model", "models", "models_max", "models_hub", "model_ttl_s", "served_model_name"),
        *("host", "port", "api_key", "allow_anonymous", "cors_allow_origins", "allowed_hosts", "tls_cert", "tls_key"),
        *("container", "management_address", "metrics_address", "max_connections", "max_buffered_bytes"),
        *("receive_timeout_s", "send_timeout_s", "shutdown_grace_s", "shutdown_delay_s"),
        *("metrics", "web", "log_format", "otlp_traces_endpoint"),
    )
)
"""Settings of the server as a whole, which a single model cannot have."""
_OWN: Final = ("model", "aliases", "pin", "ttl_s")
"""Keys of a model in a file that are not settings of a server for one model."""
_FILE_KEYS: Final = ("models", "defaults", "folder")
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_NAME: Final = re.compile(r"[^\x00-\x20\x7f]{1,200}")
_PART: Final = re.compile(r"-(\d{5})-of-\d{5}$")
_PROJECTOR: Final = "mmproj"
"""Begins the names of files that belong to another model in the folder."""
_MAX_DEPTH: Final = 3
"""Levels of folders, as in LM Studio's `publisher/repository/file.gguf`."""
_MAX_FOUND: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreset:
    """A model by its name, with its settings."""

    name: str
    model: str
    """A path, an alias, an `s3://` prefix or a Hub id, as `headrace serve` takes it."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of its server as text."""
    aliases: tuple[str, ...] = ()
    is_pinned: bool = False
    ttl_s: float | None = None
    """None: that of the server."""

    @property
    def path(self) -> Path | None:
        """The file or folder of the model; None if it is elsewhere."""
        path = Path(self.model)
        return path if path.is_absolute() else None

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which requests choose it: its own, its aliases, and those of its adapters."""
        adapters = (part.partition("=")[0] for part in self.settings.get("adapter", "").split(",") if part)
        return (self.name, *self.aliases, *adapters)


def read_presets(source: Path) -> list[ModelPreset]:
    """
    Return the models of a folder or file; those of a folder may change, so it is read again from time to time.

    Raises:
        SettingsError: the file cannot be read, or a key or value in it is not as expected.
    """
    if source.is_dir():
        return [ModelPreset(name=name, model=str(path)) for name, path in find_models(source).items()]
    if source.suffix.lower() not in _SUFFIXES:
        raise _wrong(source, f"the suffix is {source.suffix!r}; expected a folder of models, or a .yaml or .json file")
    return list(_read_file(source))


def find_models(folder: Path) -> dict[str, Path]:
    """
    Return the models in a folder by their names, which are their paths in it without `.gguf`.

    A folder with one GGUF file, in one or several parts, gives its name to the model.
    """
    found: dict[str, Path] = {}
    for path in _walk(folder.resolve(), 0):
        relative = path.relative_to(folder.resolve())
        stem = _PART.sub("", path.stem) if path.suffix == ".gguf" else relative.name
        name = str(relative.with_name(stem))
        if path.suffix == ".gguf" and len(relative.parts) > 1 and len(list(_gguf_files(path.parent))) == 1:
            name = str(relative.parent)
        found.setdefault(f"{name}/" if name in found else name, path)
        if len(found) >= _MAX_FOUND:
            break
    return found


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    try:
        files, children = list(_gguf_files(folder)), listed(folder)
    except OSError:  # one that the system does not list hides no others
        return
    yield from files
    for child in children:
        if not is_folder(child) or is_stray(child.name):
            continue
        if any(is_file(child / name) for name in ("config.json", "params.json")):
            yield child
        elif depth < _MAX_DEPTH:
            yield from _walk(child, depth + 1)


def _gguf_files(folder: Path) -> Iterator[Path]:
    """Yield the GGUF files of a folder, of those in several parts the first."""
    for path in listed(folder, ["*.gguf"]):
        part = _PART.search(path.stem)
        if not path.name.startswith(_PROJECTOR) and is_file(path) and (part is None or int(part[1]) == 1):
            yield path


def _read_file(source: Path) -> Iterator[ModelPreset]:
    content = _load(source)
    unknown = next((key for key in content if key not in _FILE_KEYS), None)
    if unknown is not None:
        raise _wrong(source, f"the key {unknown!r} is unknown; expected {', '.join(_FILE_KEYS)}")
    defaults = _mapping(content.get("defaults"), source, "defaults")
    given = _mapping(content.get("models"), source, "models")
    found: dict[str, Path] = {}
    if content.get("folder") is not None:
        folder = source.parent / str(content["folder"])
        if not is_folder(folder):
            raise _wrong(source, f"folder is {str(content['folder'])!r}; expected a folder")
        found = find_models(folder)
    if not given and not found:
        raise _wrong(source, "it has no models; expected `models`, which maps names to settings, or `folder`")
    for name in (*given, *(name for name in found if name not in given)):
        where = f"models.{name}"
        keys = {**defaults, **_mapping(given.get(name), source, where)}
        yield _preset(name, keys, source, where, found=found.get(name))


def _load(source: Path) -> dict[str, Any]:
    try:
        content = read_yaml_mapping(source.read_text(encoding="utf-8"), str(source), name="models")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(source, f"it cannot be read ({' '.join(str(error).split())})") from error
    return _mapping(content, source, "its content")


def _preset(name: str, keys: Mapping[str, Any], source: Path, where: str, *, found: Path | None) -> ModelPreset:
    if not _NAME.fullmatch(name):
        raise _wrong(source, f"{name!r} is no name; expected up to 200 characters without spaces")
    model = str(found) if keys.get("model") is None and found is not None else keys.get("model")
    if not isinstance(model, str) or not model:
        raise _wrong(source, f"{where}.model is {model!r}; expected a path, an alias or a Hub id")
    aliases, pin, ttl_s = keys.get("aliases", []), keys.get("pin", False), keys.get("ttl_s")
    if not isinstance(aliases, list) or not all(isinstance(alias, str) and _NAME.fullmatch(alias) for alias in aliases):
        raise _wrong(source, f"{where}.aliases is {aliases!r}; expected a list of names")
    if not isinstance(pin, bool):
        raise _wrong(source, f"{where}.pin is {pin!r}; expected true or false")
    if ttl_s is not None and (isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or ttl_s < 0):
        raise _wrong(source, f"{where}.ttl_s is {ttl_s!r}; expected seconds from 0 up")
    try:
        model = _located(model, source.parent)
    except (OSError, RuntimeError) as error:  # a name too long for a file; a home folder that is unknown
        raise _wrong(source, f"{where}.model cannot be looked up ({error})") from error
    return ModelPreset(
        name=name,
        model=model,
        settings={key: _text(key, value, source, where) for key, value in keys.items() if key not in _OWN},
        aliases=tuple(aliases),
        is_pinned=pin,
        ttl_s=ttl_s,
    )


def _located(model: str, folder: Path) -> str:
    """Return a path relative to the file as an absolute one; anything else is an alias, an address or a Hub id."""
    path = folder / Path(model).expanduser()
    is_path = path.exists() or model.startswith((".", "/", "~")) or model.endswith(".gguf")
    return str(path.resolve()) if is_path and "://" not in model else model


def _text(key: str, value: object, source: Path, where: str) -> str:
    """Return the value of a setting as text, which the worker's server parses by the setting's rule."""
    known = [*_OWN, *(name for name in setting_names() if name not in OF_SERVER)]
    if key in OF_SERVER:
        raise _wrong(source, f"{where}.{key} concerns the whole server; set it there, as --{key.replace('_', '-')}")
    if key not in known:
        near = near_name(key, known, cutoff=0.6)
        hint = f"did you mean {near}?" if near else "`headrace serve --help-all` lists the settings"
        raise _wrong(source, f"{where}.{key} is not a setting; {hint}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except TypeError as error:
            raise _wrong(source, f"{where}.{key} has a key or a value that JSON cannot hold ({error})") from error
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    if value is None:
        raise _wrong(source, f"{where}.{key} is empty; expected a value")
    return str(value)


def _mapping(value: object, source: Path, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise _wrong(source, f"{where} is {type(value).__name__}; expected names with values")
    return value


def _wrong(source: Path, problem: str) -> SettingsError:
    return SettingsError(f"{source}: {problem}.", name="models")
